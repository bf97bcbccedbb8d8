// SPDX-License-Identifier: MIT
// A tile of 128 rows walks the union of its blocks, adds the slots that KV-outer wrote for its
// rows, and writes the result.
//
//   steps      up to 128 keys: one block, two of 64 keys or four of 32. So products are as long,
//              compared with barriers and shuffles, for all block sizes. With 256 channels a step
//              has 64 keys, a block or half of one.
//   producer   one warp streams (TMA) the tile's queries, then keys and values of the union
//   consumers  two warpgroups of 64 rows each (wgmma). Q K^T of the next step overlaps with P V of
//              the last one, with the online softmax between them. Rows of queries that did not
//              select a block are masked; a warp skips the exponentials of a block that none of its
//              rows selected.
//   slots      meanwhile the first slots of each warp's rows are being copied. At the end the warp
//              adds them, weighted by their share of the softmax denominator: the second phase of
//              KV-outer.
//   parts      where there are few tiles and no slots, a task is a part of a tile's union. It goes
//              to a slot of its own, and join_parts writes the result.
//   turns      with 128 channels in bf16 and f16 the warpgroups begin their products alternately:
//              the softmax of one overlaps with the products of the other
//   teams      thread blocks are persistent, one per SM. With 64 channels, in bf16 and f16, and
//              blocks of up to 64 keys, a thread block has two teams of such warps. Each has its
//              own tile, and steps have 64 keys. Producers take tiles from a counter, because
//              unions differ in length, and run ahead into the next tile.
#include <algorithm>

#include "gpu/device/launch_sm90.cuh"
#include "gpu/device/union_produce_sm90.cuh"
#include "gpu/kernels/kernel_elements.h"

namespace msa::cuda {
namespace {

using namespace sm90;

/// The two rows of a thread after the union: their slots, and the result.
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void finish(const SparseUnionArgs& args, UnionMemory<T, Dim, BlockSize, Kind>& shared,
                       float (&out)[Dim / 2], const RunningSoftmax<T>& softmax, int thread) {
    const int warp = thread / kWarp, lane = thread % kWarp, row = warp * 16 + lane / 4;
    const int heads = args.group_size();
    const auto kept = shared.kept[warp];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        float total = softmax.sum[side];
        total += __shfl_xor_sync(kAllLanes, total, 1);
        total += __shfl_xor_sync(kAllLanes, total, 2);
        float best = best_of(softmax, side, args.scale * kLog2E);
        if constexpr (Kind != Slots::none)
            shared.slots[warp].template add<Kind == Slots::mixed>(args, side, out, best, total);
        const int query = (row + kRun * side) / heads;
        const bool wanted = query < kept.queries;  // not of an empty row
        const bool any = total != 0;               // NaN alone leaves no best score, but a total
        const float factor = any ? 1 / total : 0;
        const float lse = any ? best + log2f(total) : -INFINITY;  // base 2
        if (UnionMemory<T, Dim, BlockSize, Kind>::kParts && args.parts > 1) {
            if (!wanted) continue;
            const int place = kept.part_row + row + kRun * side;
            store_slot<Stored<T>>(out, side, factor, args.workspace.partial_out, place);
            if (lane % 4 == 0) args.workspace.partial_lse[place] = lse;
            continue;
        }
        const int64_t at = kept.query + query;
        if (wanted && has_nan(out, side, factor)) args.marked[at * args.groups + kept.group] = 1;
        const int64_t out_row =
            at * args.query_heads + kept.group * heads + (row + kRun * side) % heads;
        store_row<Stored<T>>(out, side, factor, wanted,
                             static_cast<char*>(args.out) + out_row * Dim * 2);
        if (wanted && lane % 4 == 0) args.lse[out_row] = lse * kLn2;
    }
}

/// How many keys of each block of a step a thread's two rows see.
template <int BlockSize, int Blocks>
__device__ void look_up(const UnionBlock (&blocks)[Blocks], const int (&query)[2],
                        const int (&visible)[2], int (&seen)[Blocks][2]) {
    for (int n = 0; n < Blocks; ++n) {
        const UnionBlock block = blocks[n];
        for (int side = 0; side < 2; ++side)
            seen[n][side] =
                (block.queries >> query[side]) & 1 ? visible[side] - block.block * BlockSize : 0;
    }
}

template <typename T, int Dim, int BlockSize, Slots Kind>
__global__ void __launch_bounds__(UnionThreadsOf<T, Dim, BlockSize>::kThreads, 1)
    union_attention(const __grid_constant__ SparseUnionArgs args) {
    extern __shared__ __align__(1024) char memory[];
    using Memory = UnionMemory<T, Dim, BlockSize, Kind>;
    using Threads = typename Memory::Threads;
    auto* const of_teams = reinterpret_cast<Memory*>(memory);
    constexpr bool kNarrow = kIsE4m3<T>;
    constexpr int kKeys = Memory::kKeys;
    if (threadIdx.x < Memory::kTeamsOf) of_teams[threadIdx.x].init();
    __syncthreads();
    constexpr bool kAnySlots = Kind != Slots::none;
    // It begins at the end of KV-outer, which had the schedule: slots alone may not be there yet.
    if (!kAnySlots) wait_for_previous_kernel();
    if (threadIdx.x >= Memory::kTeamsOf * Threads::kTeamThreads) {
        setmaxnreg_dec<Threads::kProducer>();
        const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
        const int team = Memory::kTeamsOf == 1 ? 0 : warp;
        if (warp < Memory::kTeamsOf) produce_blocks(args, of_teams[team], team);
        return;
    }
    setmaxnreg_inc<Threads::kConsumer>();

    const int team = Memory::kTeamsOf == 1 ? 0 : threadIdx.x / Threads::kTeamThreads;
    const int thread = threadIdx.x % Threads::kTeamThreads, warpgroup = thread / kWarpgroup;
    auto& shared = of_teams[team];
    const int lane = thread % kWarp, row = thread / kWarp * 16 + lane / 4;
    const bool leader = lane == 0;  // releases for its warp
    int query[2];                   // of an empty row: any, its results go nowhere
    for (int side = 0; side < 2; ++side)
        query[side] = min((row + kRun * side) / args.group_size(), kSparseTileQueries - 1);
    const float scale = args.scale * kLog2E;
    auto& slots = shared.slots[thread / kWarp];
    Cursor<Memory::kTasks> q_at;
    Cursor<Memory::kStages> k_at, v_at;
    const Turns<kTakeTurns<T, Dim>> turns(team, warpgroup);
    for (;; q_at.advance()) {
        shared.q_ring.full[q_at.stage].wait(q_at.parity);
        const Task& task = shared.tasks[q_at.stage];
        const int steps = task.steps;
        if (__any_sync(kAllLanes, steps == kNoTask)) break;
        __syncwarp();  // all lanes are done with the last task
        auto& kept = shared.keep(task, thread / kWarp);
        if constexpr (Kind == Slots::mixed)
            if (lane % 4 == 0)
                for (int side = 0; side < 2; ++side)
                    slots.counts[kRun * side + lane / 4] = task.slots[query[side]];
        const auto start_slots = [&] {  // whose kernel may still be at work
            if constexpr (kAnySlots) {
                if (!leader) return;
                wait_for_previous_kernel();
                slots.start(args, task.runs[row / kRun], task.runs[row / kRun + 1]);
            }
        };
        const int visible[2] = {task.visible[query[0]], task.visible[query[1]]};
        [[maybe_unused]] float row_scale[2];
        if constexpr (kNarrow)
            for (int side = 0; side < 2; ++side)
                row_scale[side] = scale * shared.scales.row[q_at.stage][row + kRun * side];
        float out[Dim / 2] = {};
        RunningSoftmax<T> softmax;
        if (steps > 0) {
            uint32_t p[kNarrow ? kKeys / 8 : kKeys / 4];
            float factor[2];
            auto start = [&](float(&sum)[kKeys / 2]) {
                start_scores_of<T, Dim, kKeys, kAttendRows>(
                    sum, shared.q[q_at.stage] + warpgroup * 64 * kSwizzle, shared.k[k_at.stage]);
            };
            ValueSums<T, Dim, kKeys> sums;
            auto start_out = [&](bool add) { sums.start(out, p, shared.v[v_at.stage], add); };
            // Ends what start_out() started; work() goes on while products run.
            auto end_out = [&](auto&& work) {
                sums.end(out, p, shared.v[v_at.stage], work);
                if (leader) shared.v_ring.empty[v_at.stage].arrive();
                v_at.advance();
            };
            // Scores of the step at k_at become weights; `values`: of the last step's weights, are
            // under way; `last`: of the tile, whose queries are done with.
            auto take = [&](float(&sum)[kKeys / 2], bool values, bool last) {
                int seen[Memory::kBlocks][2];
                look_up<BlockSize>(shared.blocks[k_at.stage], query, visible, seen);
                [[maybe_unused]] const BlockScales scales = shared.scales.at(k_at.stage);
                if (leader && last) kept.keep_end(task, shared.blocks[k_at.stage]);
                __syncwarp();  // all lanes have read them
                if (leader) shared.k_ring.empty[k_at.stage].arrive();
                if (leader && last) shared.q_ring.empty[q_at.stage].arrive();
                k_at.advance();
                [[maybe_unused]] bool any[Memory::kBlocks];
                [[maybe_unused]] uint32_t next[kNarrow ? kKeys / 8 : 1] = {};
                if constexpr (kNarrow) {
                    const auto step = softmax.meet(sum, seen[0], row_scale, scales, factor);
                    const auto weigh = [&] {
                        if (!step.any) return;
                        softmax.weigh(sum, step, scales, factor);
                        keep_weights<T>(next, sum);
                    };
                    if (values)
                        end_out(weigh);
                    else
                        weigh();
                } else {
                    softmax.step(sum, seen, scale, factor, any, values);
                    if (values) end_out([] {});
                }
                if (values && __any_sync(kAllLanes, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
                    for (int i = 0; i < Dim / 2; ++i) out[i] *= factor[i / 2 % 2];
                }
                if constexpr (kNarrow)
                    move_words(p, next);
                else
                    keep_weights_where<T>(p, sum, any);
            };
            shared.k_ring.full[k_at.stage].wait(k_at.parity);
            {
                float sum[kKeys / 2];
                turns.begin();
                start(sum);
                turns.end();
                start_slots();
                wgmma_wait<0>();
                take(sum, false, steps == 1);
            }
            for (int n = 1; n < steps; ++n) {
                float sum[kKeys / 2];
                shared.k_ring.full[k_at.stage].wait(k_at.parity);
                turns.begin();
                start(sum);
                shared.v_ring.full[v_at.stage].wait(v_at.parity);
                start_out(n > 1);
                turns.end();
                wgmma_wait<1>();
                take(sum, true, n + 1 == steps);
            }
            shared.v_ring.full[v_at.stage].wait(v_at.parity);
            clear_end(shared, v_at.stage, kept, team, warpgroup);
            turns.begin();
            start_out(steps > 1);
            turns.end();
            end_out([] {});
        } else {
            start_slots();
            __syncwarp();  // all lanes have read the task
            if (leader) shared.q_ring.empty[q_at.stage].arrive();
        }
        finish(args, shared, out, softmax, opaque_thread() % Threads::kTeamThreads);
    }
    turns.leave();
    launch_dependents();
}

constexpr int kJoinWarps = 4;  // of a thread block

/// Joins the parts of unions: a warp has a run of a tile's rows, four lanes for each row.
template <typename T, int Dim>
__global__ void __launch_bounds__(kJoinWarps* kWarp)
    join_parts(const __grid_constant__ SparseUnionArgs args) {
    wait_for_previous_kernel();
    launch_dependents();
    const int lane = threadIdx.x % kWarp, heads = args.group_size(), rows = args.slot_rows();
    const int run = static_cast<int>(blockIdx.x * kJoinWarps + threadIdx.x / kWarp);
    const int item = run / (rows / kRun), row = run % (rows / kRun) * kRun + lane / 4;
    if (item >= args.tile_count * args.groups) return;
    const QueryTile tile = args.tiles[item / args.groups];
    const int group = item % args.groups, query = row / heads;
    const bool wanted = query < tile.queries;  // not of an empty row
    const int first = args.part_row(item, 0) + row;
    const float* const lse = args.workspace.partial_lse + first;
    const auto* const chunks = static_cast<const uint4*>(args.workspace.partial_out);
    const int parts = wanted ? args.parts : 0;
    float of_part[kMostUnionParts], best = -INFINITY, total = 0, out[Dim / 2] = {};
#pragma unroll
    for (int n = 0; n < kMostUnionParts; ++n) {
        of_part[n] = n < parts ? lse[n * rows] : -INFINITY;
        best = fmaxf(best, of_part[n]);
    }
    const float shift = best == -INFINITY ? 0 : best;
    constexpr int kAtOnce = Dim > 128 ? 2 : 4;  // are read before they are added
#pragma unroll
    for (int begin = 0; begin < kMostUnionParts; begin += kAtOnce) {
        uint4 chunk[kAtOnce][Dim / 32];
#pragma unroll
        for (int n = begin; n < begin + kAtOnce; ++n)
#pragma unroll
            for (int i = 0; i < Dim / 32; ++i)
                if (n < parts) chunk[n - begin][i] = chunks[slot_chunk<Dim>(first + n * rows, i)];
#pragma unroll
        for (int n = begin; n < begin + kAtOnce; ++n) {
            if (n >= parts) break;
            const float weight = exp2_fast(of_part[n] - shift);
            total += weight;
#pragma unroll
            for (int i = 0; i < Dim / 32; ++i)
                add_chunk<Stored<T>>(out, 0, i, chunk[n - begin][i], weight);
        }
    }
    const bool any = total != 0;
    const float factor = any ? 1 / total : 0;
    const int64_t at = tile.query + query;
    if (wanted && has_nan(out, 0, factor)) args.marked[at * args.groups + group] = 1;
    const int64_t out_row = at * args.query_heads + group * heads + row % heads;
    store_row<Stored<T>>(out, 0, factor, wanted, static_cast<char*>(args.out) + out_row * Dim * 2);
    if (wanted && lane % 4 == 0) args.lse[out_row] = any ? (best + log2f(total)) * kLn2 : -INFINITY;
}

}  // namespace

template <typename T>
cudaError_t launch_sparse_union_sm90(const SparseUnionArgs& args, int sms, cudaStream_t stream) {
    return by_head_sizes<T, true>(args.head_dim, args.block_size, [&]<int Dim, int BlockSize>() {
        constexpr int kStepBlock = Dim == 256 ? kSparseWideStepKeys : BlockSize;
        const auto launch = [&]<Slots Kind>() {
            using S = UnionMemory<T, Dim, kStepBlock, Kind>;
            static_assert(sizeof(S) <= S::Threads::kSharedBytes);
            auto* const kernel = union_attention<T, Dim, kStepBlock, Kind>;
            const cudaError_t error = allow_shared<S[S::kTeamsOf]>(kernel);
            if (error != cudaSuccess) return error;
            const int64_t items = int64_t{args.tile_count} * args.groups * args.parts;
            return launch_early(kernel, dim3(static_cast<unsigned>(std::min<int64_t>(items, sms))),
                                S::Threads::kThreads, sizeof(S[S::kTeamsOf]), stream, args);
        };
        if (args.any_slots())
            return args.group_size() % kRun == 0 ? launch.template operator()<Slots::alike>()
                                                 : launch.template operator()<Slots::mixed>();
        const cudaError_t error = launch.template operator()<Slots::none>();
        if (error != cudaSuccess || args.parts == 1) return error;
        const int64_t runs = int64_t{args.tile_count} * args.groups * (args.slot_rows() / kRun);
        return launch_early(join_parts<T, Dim>,
                            static_cast<unsigned>(ceil_div(runs, int64_t{kJoinWarps})),
                            kJoinWarps * kWarp, 0, stream, args);
    });
}

#define MSA_INSTANTIATE(T) \
    template cudaError_t launch_sparse_union_sm90<T>(const SparseUnionArgs&, int, cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
