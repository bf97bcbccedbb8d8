// SPDX-License-Identifier: MIT
// A tile of 128 rows walks the union of its blocks, adds what KV-outer left for its rows, and
// writes the result.
//
// Producer: one warp streams the tile's queries, then keys and values of the union's blocks (TMA).
// Consumers: two warpgroups of 64 rows each. The product Q K^T of the next block runs beside P V of
// the last one (wgmma), with the online softmax between them. Rows of queries that did not select a
// block are masked.
// Slots: meanwhile each warp has the first slots of its rows on their way. At the end it adds them,
// each weighted by its share of the softmax denominator: the second phase of KV-outer.
//
// Thread blocks are persistent, one per SM: the producer takes tiles from a counter, as their
// unions differ, and runs ahead into the next one.
#include <algorithm>

#include "gpu/device/launch_sm90.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/device/union_task_sm90.cuh"

namespace msa::cuda {
namespace {

using namespace sm90;

template <typename T, int Dim, int BlockSize, Slots Kind>
struct Shared {
    using S = OperandShape<T, Dim, BlockSize>;
    static constexpr int kStages = Kind == Slots::none ? S::kStages * 3 / 2 : S::kStages;
    char q[S::kQueryBytes];
    char k[kStages][S::kKeyBytes];
    char v[kStages][S::kValueBytes];
    SlotsOf<Kind, Stored<T>, Dim> slots[AttendRows::kConsumers * 4];  // per warp
    UnionBlock blocks[kStages];
    Task task;
    Kept kept[AttendRows::kConsumers * 4];  // per warp
    Ring<kStages> k_ring, v_ring;
    Barrier q_full, q_empty;  // task and q
    TaskScales<T, kStages> scales;
};

/// The slots of the queries of a tile and group, a lane each, and of its runs of rows.
__device__ Run read_slots(const SparseUnionArgs& args, int tile_index, int group, int& slots) {
    const int lane = threadIdx.x % kWarp, heads = args.group_size();
    slots = 0;
    if (!args.any_slots()) return {0, 0};
    if (lane < args.tile_queries)
        slots = __popc(args.workspace.in_slots[args.row(tile_index, lane, group)]);
    Run run{args.slot_row(tile_index, group, 0) + lane * kRun, 0};
    const int first = lane * kRun / heads, last = (lane * kRun + kRun - 1) / heads;
    for (int i = 0; i < kRun; ++i) {
        const int of_query = __shfl_sync(kAllLanes, slots, min(first + i, last));
        if (first < args.tile_queries) run.count = max(run.count, of_query);
    }
    return run;
}

/// The tiles of a round and a thread block, for the producer warp. Group major, so that tiles that
/// run together share keys.
struct TileQueue {
    SparseRound* round;
    int first_tile, tiles, index, taken = 0;

    __device__ explicit TileQueue(const SparseUnionArgs& args)
        : round(args.workspace.rounds + args.round),
          first_tile(round->first_chunk * args.chunk_tiles),
          tiles(min(round->chunks * args.chunk_tiles, args.tile_count - first_tile)),
          index(static_cast<int>(blockIdx.x)) {}
    __device__ bool any(int groups) const { return index < tiles * groups; }
    __device__ int tile() const { return first_tile + index % tiles; }
    __device__ int group() const { return index / tiles; }
    /// By one lane: asks for the next one, which next() moves to. Late, so that a tile does not
    /// wait here while another thread block is free.
    __device__ void take() { taken = static_cast<int>(gridDim.x) + atomicAdd(&round->taken, 1); }
    __device__ void next() { index = __shfl_sync(kAllLanes, taken, 0); }
};

/// By one lane: the queries of a tile, and the task, but for what all lanes have put there.
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void fetch_queries(const SparseUnionArgs& args, Shared<T, Dim, BlockSize, Kind>& shared,
                              const QueryTile& tile, int group, int count) {
    using S = OperandShape<T, Dim, BlockSize>;
    shared.task.query = tile.query;
    shared.task.queries = tile.queries;
    shared.task.group = group;
    shared.task.blocks = count;
    const uint32_t bytes = static_cast<uint32_t>(args.tile_rows() * S::kBoxes * kSwizzle);
    shared.q_full.expect(count > 0 ? bytes : 0);
    for (int box = 0; count > 0 && box < S::kBoxes; ++box)
        copy_box(shared.q + box * S::kQueryBox, &args.q, 64 * box, group * args.group_size(),
                 static_cast<int>(tile.query), &shared.q_full);
}

/// By one lane: the keys of a block of the union, whose first key this is.
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void fetch_keys(const SparseUnionArgs& args, Shared<T, Dim, BlockSize, Kind>& shared,
                           int stage, int group, int key, const UnionBlock& block,
                           const BlockScales& scales) {
    using S = OperandShape<T, Dim, BlockSize>;
    Barrier& full = shared.k_ring.full[stage];
    shared.blocks[stage] = block;
    shared.scales.put_block(scales, stage);
    full.expect(S::kKeyBytes);
    for (int box = 0; box < S::kBoxes; ++box)
        copy_box(shared.k[stage] + box * S::kKeyBox, &args.k, group * Dim + 64 * box, key, &full);
}

/// The same of its values; `number`: of its scales.
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void fetch_values(const SparseUnionArgs& args, Shared<T, Dim, BlockSize, Kind>& shared,
                             int stage, int group, int key, int64_t number) {
    using S = OperandShape<T, Dim, BlockSize>;
    Barrier& full = shared.v_ring.full[stage];
    full.expect(S::kValueBytes);
    if constexpr (kIsE4m3<T>)
        copy_bytes(shared.v[stage], args.values + number * S::kValueBytes, S::kValueBytes, &full,
                   Keep::normal);
    else
        for (int box = 0; box < S::kBoxes; ++box)
            copy_box(shared.v[stage] + box * S::kKeyBox, &args.v, group * Dim + 64 * box, key,
                     &full);
}

/// The producer warp; its first lane issues the copies.
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void produce_blocks(const SparseUnionArgs& args,
                               Shared<T, Dim, BlockSize, Kind>& shared) {
    Cursor<Shared<T, Dim, BlockSize, Kind>::kStages> at;
    uint32_t q_parity = 1;
    const int lane = threadIdx.x % kWarp;
    const bool issues = lane == 0;
    for (TileQueue queue(args); queue.any(args.groups); queue.next()) {
        const int tile_index = queue.tile(), group = queue.group();
        const int item = tile_index * args.groups + group;
        const QueryTile tile = args.tiles[tile_index];
        const int count = args.workspace.block_counts[item];
        const UnionBlock* const blocks =
            args.workspace.blocks + int64_t{item} * args.top_k * args.tile_queries;
        const int visible = lane < tile.queries ? seen_keys(args.visible, tile.query + lane) : 0;
        int slots;
        const Run run = read_slots(args, tile_index, group, slots);
        UnionBlock next = count > 0 ? blocks[0] : UnionBlock{};
        const auto row_scales = shared.scales.read_rows(args, tile, group);
        shared.q_empty.wait(q_parity);
        q_parity ^= 1;
        shared.task.visible[lane] = visible, shared.task.slots[lane] = slots;
        if (lane < kRuns) shared.task.runs[lane] = run;
        shared.scales.put_rows(row_scales);
        __syncwarp();
        if (issues) fetch_queries(args, shared, tile, group, count);
        for (int n = 0; n < count; ++n, at.advance()) {
            const UnionBlock block = next;
            if (n + 1 < count)
                next = blocks[n + 1];
            else if (issues)
                queue.take();
            const int key = static_cast<int>(tile.key) + block.block * BlockSize;
            const int64_t number = int64_t{tile.first_block + block.block} * args.groups + group;
            const BlockScales scales = shared.scales.read_block(args, number);
            shared.k_ring.empty[at.stage].wait(at.parity ^ 1);
            if (issues) fetch_keys(args, shared, at.stage, group, key, block, scales);
            shared.v_ring.empty[at.stage].wait(at.parity ^ 1);
            if (issues) fetch_values(args, shared, at.stage, group, key, number);
            __syncwarp();
        }
        if (count == 0 && issues) queue.take();
    }
    shared.q_empty.wait(q_parity);
    if (issues) {
        shared.task.blocks = kNoTask;
        shared.q_full.expect(0);
    }
    wait_for_previous_kernel();  // the next kernel waits for this one alone
}

/// The thread's number, anew: what follows from it need not be kept till then.
__device__ int opaque_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/// The two rows of a thread after the union: their slots, and the result.
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void finish(const SparseUnionArgs& args, Shared<T, Dim, BlockSize, Kind>& shared,
                       float (&out)[Dim / 2], const RunningSoftmax<T>& softmax, int thread) {
    const int warp = thread / kWarp, lane = thread % kWarp, row = warp * 16 + lane / 4;
    const int heads = args.group_size();
    const Kept kept = shared.kept[warp];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        float total = softmax.sum[side];
        total += __shfl_xor_sync(kAllLanes, total, 1);
        total += __shfl_xor_sync(kAllLanes, total, 2);
        float best;
        if constexpr (kIsE4m3<T>)
            best = softmax.best(side);
        else
            best = softmax.running_max[side] * (args.scale * kLog2E);
        if constexpr (Kind != Slots::none)
            shared.slots[warp].template add<Kind == Slots::mixed>(args, side, out, best, total);
        const int query = (row + kRun * side) / heads;
        const bool wanted = query < kept.queries;  // not of an empty row
        const bool any = total != 0;               // NaN alone leaves no best score, but a total
        const float factor = any ? 1 / total : 0;
        const int64_t at = kept.query + query;
        if (wanted && has_nan(out, side, factor)) args.marked[at * args.groups + kept.group] = 1;
        const int64_t out_row =
            at * args.query_heads + kept.group * heads + (row + kRun * side) % heads;
        store_row<Stored<T>>(out, side, factor, wanted,
                             static_cast<char*>(args.out) + out_row * Dim * 2);
        if (wanted && lane % 4 == 0)
            args.lse[out_row] = any ? (best + log2f(total)) * kLn2 : -INFINITY;
    }
}

template <typename T, int Dim, int BlockSize, Slots Kind>
__global__ void __launch_bounds__(AttendRows::kThreads, 1)
    union_attention(const __grid_constant__ SparseUnionArgs args) {
    extern __shared__ __align__(1024) char memory[];
    using Memory = Shared<T, Dim, BlockSize, Kind>;
    auto& shared = *reinterpret_cast<Memory*>(memory);
    constexpr bool kNarrow = kIsE4m3<T>;
    if (threadIdx.x == 0) {
        shared.k_ring.init(AttendRows::kConsumers);
        shared.v_ring.init(AttendRows::kConsumers);
        shared.q_full.init(1);
        shared.q_empty.init(4 * AttendRows::kConsumers);
        for (auto& slots : shared.slots) slots.init();
        fence_barriers();
    }
    __syncthreads();
    constexpr bool kAnySlots = Kind != Slots::none;
    // It begins at the end of KV-outer, which had the schedule: slots alone may not be there yet.
    if (!kAnySlots) wait_for_previous_kernel();
    const int warpgroup = threadIdx.x / kWarpgroup;
    if (warpgroup == AttendRows::kConsumers) {
        setmaxnreg_dec<AttendRows::kProducerRegisters>();
        if (threadIdx.x % kWarpgroup < kWarp) produce_blocks(args, shared);
        return;
    }
    setmaxnreg_inc<AttendRows::kConsumerRegisters>();

    const bool leader = threadIdx.x % kWarp == 0;  // releases for its warp
    const int lane = threadIdx.x % kWarp;
    const int row = warpgroup * 64 + threadIdx.x % kWarpgroup / kWarp * 16 + lane / 4;
    int query[2];  // of an empty row: any, its results go nowhere
    for (int side = 0; side < 2; ++side)
        query[side] = min((row + kRun * side) / args.group_size(), kSparseTileQueries - 1);
    const float scale = args.scale * kLog2E;
    const char* const q = shared.q + warpgroup * 64 * kSwizzle;
    auto& slots = shared.slots[threadIdx.x / kWarp];
    Cursor<Memory::kStages> k_at, v_at;
    uint32_t q_parity = 0;
    const auto start_slots = [&] {  // whose kernel may still be at work
        if constexpr (kAnySlots) {
            if (!leader) return;
            wait_for_previous_kernel();
            slots.start(args, shared.task.runs[row / kRun], shared.task.runs[row / kRun + 1]);
        }
    };
    for (;;) {
        shared.q_full.wait(q_parity);
        q_parity ^= 1;
        const Task& task = shared.task;
        const int count = task.blocks;
        if (__any_sync(kAllLanes, count == kNoTask)) return;
        __syncwarp();  // all lanes are done with the last task
        if (leader) shared.kept[threadIdx.x / kWarp] = {task.query, task.queries, task.group};
        if constexpr (Kind == Slots::mixed)
            if (lane % 4 == 0)
                for (int side = 0; side < 2; ++side)
                    slots.counts[kRun * side + lane / 4] = task.slots[query[side]];
        const int visible[2] = {task.visible[query[0]], task.visible[query[1]]};
        [[maybe_unused]] float row_scale[2];
        if constexpr (kNarrow)
            for (int side = 0; side < 2; ++side)
                row_scale[side] = scale * shared.scales.row[row + kRun * side];
        float out[Dim / 2] = {};
        RunningSoftmax<T> softmax;
        if (count > 0) {
            uint32_t p[kNarrow ? BlockSize / 8 : BlockSize / 4];
            float factor[2];
            auto start = [&](float(&sum)[BlockSize / 2]) {
                start_scores_of<T, Dim, BlockSize, kAttendRows>(sum, q, shared.k[k_at.stage]);
            };
            ValueSums<T, Dim, BlockSize> sums;
            auto start_out = [&](bool add) { sums.start(out, p, shared.v[v_at.stage], add); };
            // Ends what start_out() started; work() goes on while products run.
            auto end_out = [&](auto&& work) {
                sums.end(out, p, shared.v[v_at.stage], work);
                if (leader) shared.v_ring.empty[v_at.stage].arrive();
                v_at.advance();
            };
            // Scores of the block at k_at become weights; `values`: of the last block's weights,
            // are under way.
            auto take = [&](float(&sum)[BlockSize / 2], bool values) {
                const UnionBlock block = shared.blocks[k_at.stage];
                [[maybe_unused]] const BlockScales scales = shared.scales.at(k_at.stage);
                __syncwarp();  // all lanes have read it
                if (leader) shared.k_ring.empty[k_at.stage].arrive();
                k_at.advance();
                int seen[2];
                for (int side = 0; side < 2; ++side)
                    seen[side] = (block.queries >> query[side]) & 1
                                     ? visible[side] - block.block * BlockSize
                                     : 0;
                [[maybe_unused]] bool any = true;
                [[maybe_unused]] uint32_t next[kNarrow ? BlockSize / 8 : 1] = {};
                if constexpr (kNarrow) {
                    const auto step = softmax.meet(sum, seen, row_scale, scales, factor);
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
                    any = softmax.step(sum, seen, scale, factor);
                    if (values) end_out([] {});
                }
                if (values && __any_sync(kAllLanes, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
                    for (int i = 0; i < Dim / 2; ++i) out[i] *= factor[i / 2 % 2];
                }
                if constexpr (kNarrow) {
                    move_words(p, next);
                } else if (any) {
                    keep_weights<T>(p, sum);
                } else {
#pragma unroll
                    for (uint32_t& word : p) word = 0;
                }
            };
            shared.k_ring.full[k_at.stage].wait(k_at.parity);
            {
                float sum[BlockSize / 2];
                start(sum);
                start_slots();
                wgmma_wait<0>();
                take(sum, false);
            }
            for (int n = 1; n < count; ++n) {
                float sum[BlockSize / 2];
                shared.k_ring.full[k_at.stage].wait(k_at.parity);
                start(sum);
                shared.v_ring.full[v_at.stage].wait(v_at.parity);
                start_out(n > 1);
                wgmma_wait<1>();
                take(sum, true);
            }
            if (leader) shared.q_empty.arrive();
            shared.v_ring.full[v_at.stage].wait(v_at.parity);
            start_out(count > 1);
            end_out([] {});
        } else {
            start_slots();
            __syncwarp();  // all lanes have read the task
            if (leader) shared.q_empty.arrive();
        }
        finish<T, Dim, BlockSize, Kind>(args, shared, out, softmax, opaque_thread());
    }
}

}  // namespace

template <typename T>
cudaError_t launch_sparse_union_sm90(const SparseUnionArgs& args, int sms, cudaStream_t stream) {
    return by_operand_sizes<T>(args.head_dim, args.block_size, [&]<int Dim, int BlockSize>() {
        const auto launch = [&]<Slots Kind>() {
            using S = Shared<T, Dim, BlockSize, Kind>;
            auto* const kernel = union_attention<T, Dim, BlockSize, Kind>;
            const cudaError_t error = allow_shared<S>(kernel);
            if (error != cudaSuccess) return error;
            const int64_t items = int64_t{args.tile_count} * args.groups;
            return launch_early(kernel, dim3(static_cast<unsigned>(std::min<int64_t>(items, sms))),
                                AttendRows::kThreads, sizeof(S), stream, args);
        };
        if (!args.any_slots()) return launch.template operator()<Slots::none>();
        if (args.group_size() % kRun == 0) return launch.template operator()<Slots::alike>();
        return launch.template operator()<Slots::mixed>();
    });
}
template cudaError_t launch_sparse_union_sm90<MSA_KERNEL_ELEMENT>(const SparseUnionArgs&, int,
                                                                  cudaStream_t);

}  // namespace msa::cuda
