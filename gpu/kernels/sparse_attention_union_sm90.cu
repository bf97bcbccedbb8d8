// SPDX-License-Identifier: MIT
// A tile of 128 rows walks the union of its blocks, adds what KV-outer left for its rows, and
// writes the result.
//
// A step takes up to 128 keys: one block, two of 64 keys or four of 32, so that its products are as
// long beside its barriers and exchanges for all block sizes.
// Producer: one warp streams the tile's queries, then keys and values of the union's blocks (TMA).
// Consumers: two warpgroups of 64 rows each. The product Q K^T of the next step runs beside P V of
// the last one (wgmma), with the online softmax between them. Rows of queries that did not select a
// block are masked; a warp none of whose rows did takes no exponentials of it.
// Slots: meanwhile each warp has the first slots of its rows on their way. At the end it adds them,
// each weighted by its share of the softmax denominator: the second phase of KV-outer.
//
// Thread blocks are persistent, one per SM: the producer takes tiles from a counter, as their
// unions differ, and runs ahead into the next one.
#include <algorithm>

#include "gpu/device/launch_sm90.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/device/union_tiles_sm90.cuh"

namespace msa::cuda {
namespace {

using namespace sm90;

/// What a team has.
template <typename T, int Dim, int BlockSize, Slots Kind>
struct alignas(1024) Shared {
    static constexpr int kTeamsOf = kTeams<T, Dim, BlockSize>;
    using Threads = UnionThreads<kTeamsOf>;
    static constexpr int kBlocks = kStepBlocks<T, Dim, BlockSize>, kKeys = kBlocks * BlockSize;
    using S = OperandShape<T, Dim, kKeys>;
    static constexpr int kTasks = Dim == 64 ? 2 : 1;  // of 128, a second would cost a stage
    static constexpr int kStages = Kind == Slots::none ? S::kStages * 3 / 2 : S::kStages;
    char q[kTasks][S::kQueryBytes];
    char k[kStages][S::kKeyBytes];
    char v[kStages][S::kValueBytes];
    SlotsOf<Kind, Stored<T>, Dim, Threads::kSlotStages> slots[Threads::kTeamWarps];
    UnionBlock blocks[kStages][kBlocks];
    Task tasks[kTasks];
    Kept kept[Threads::kTeamWarps];
    Ring<kTasks> q_ring;  // tasks and q
    Ring<kStages> k_ring, v_ring;
    TaskScales<T, kTasks, kStages> scales;
};

/// By one lane: the queries of a tile, and the task at this stage, but for what all lanes have put
/// there.
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void fetch_queries(const SparseUnionArgs& args, Shared<T, Dim, BlockSize, Kind>& shared,
                              int stage, const QueryTile& tile, int group, int steps) {
    using S = typename Shared<T, Dim, BlockSize, Kind>::S;
    Task& task = shared.tasks[stage];
    Barrier& full = shared.q_ring.full[stage];
    task.query = tile.query;
    task.queries = tile.queries;
    task.group = group;
    task.steps = steps;
    const uint32_t bytes = static_cast<uint32_t>(args.tile_rows() * S::kBoxes * kSwizzle);
    full.expect(steps > 0 ? bytes : 0);
    for (int box = 0; steps > 0 && box < S::kBoxes; ++box)
        copy_box(shared.q[stage] + box * S::kQueryBox, &args.q, 64 * box, group * args.group_size(),
                 static_cast<int>(tile.query), &full);
}

/// By a lane for each block of a step: its keys, or its values. `key`: its first row.
template <typename S, int BlockSize>
__device__ void copy_block(char* to, const CUtensorMap* map, int group, int dim, int key,
                           Barrier& full) {
    char* const rows = to + threadIdx.x % kWarp * (BlockSize * kSwizzle);
    for (int box = 0; box < S::kBoxes; ++box)
        copy_box(rows + box * S::kKeyBox, map, group * dim + 64 * box, key, &full);
}

/// By the warp, whose first lanes have the blocks of a step: their keys.
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void fetch_keys(const SparseUnionArgs& args, Shared<T, Dim, BlockSize, Kind>& shared,
                           int stage, int group, int key, const UnionBlock& block,
                           const BlockScales& scales) {
    using Memory = Shared<T, Dim, BlockSize, Kind>;
    using S = typename Memory::S;
    const int lane = threadIdx.x % kWarp;
    Barrier& full = shared.k_ring.full[stage];
    if (lane < Memory::kBlocks) shared.blocks[stage][lane] = block;
    if (lane == 0) shared.scales.put_block(scales, stage);
    __syncwarp();
    if (lane == 0) full.expect(S::kKeyBytes);
    if (lane < Memory::kBlocks)
        copy_block<S, BlockSize>(shared.k[stage], &args.k, group, Dim, key, full);
}

/// The same of their values; `number`: of the block's scales.
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void fetch_values(const SparseUnionArgs& args, Shared<T, Dim, BlockSize, Kind>& shared,
                             int stage, int group, int key, int64_t number) {
    using Memory = Shared<T, Dim, BlockSize, Kind>;
    using S = typename Memory::S;
    const int lane = threadIdx.x % kWarp;
    Barrier& full = shared.v_ring.full[stage];
    if (lane == 0) full.expect(S::kValueBytes);
    if (lane >= Memory::kBlocks) return;
    if constexpr (kIsE4m3<T>)
        copy_bytes(shared.v[stage], args.values + number * S::kValueBytes, S::kValueBytes, &full,
                   Keep::normal);
    else
        copy_block<S, BlockSize>(shared.v[stage], &args.v, group, Dim, key, full);
}

/// The producer warp. Keys of a step come before the values of the step before it, also from one
/// tile to the next: what that is, is read while the last values wait for their place, and its first
/// keys do not wait for the last tile's queries to be done with.
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void produce_blocks(const SparseUnionArgs& args, Shared<T, Dim, BlockSize, Kind>& shared,
                               int team) {
    using Memory = Shared<T, Dim, BlockSize, Kind>;
    constexpr bool kAhead = Memory::kTasks > 1;  // the queries of the next tile are
    Cursor<Memory::kStages> at;
    Cursor<Memory::kTasks> q_at;
    const int lane = threadIdx.x % kWarp;
    int group = -1, key = 0;  // of the keys at `at`, whose values are to be asked for; -1: of none
    int64_t number = 0;
    const auto fetch_last_values = [&] {
        if (group < 0) return;
        shared.v_ring.empty[at.stage].wait(at.parity ^ 1);
        fetch_values(args, shared, at.stage, group, key, number);
        __syncwarp();
        at.advance();
        group = -1;
    };
    TileQueue<Memory::kTeamsOf> queue(args, team);
    for (; queue.any(args.groups); queue.next(), q_at.advance()) {
        const int tile_index = queue.tile(), of_tile = queue.group();
        const int item = tile_index * args.groups + of_tile;
        const QueryTile tile = args.tiles[tile_index];
        const int count = args.workspace.block_counts[item];
        const UnionBlock* const blocks =
            args.workspace.blocks + int64_t{item} * args.top_k * args.tile_queries;
        const auto block_from = [&](int first) {  // for this lane, of the step that begins there
            const int n = first + lane % Memory::kBlocks;
            return n < count ? blocks[n] : UnionBlock{};
        };
        UnionBlock next = block_from(0);
        const int visible = lane < tile.queries ? seen_keys(args.visible, tile.query + lane) : 0;
        int slots = 0;
        Run run{};
        if constexpr (Kind != Slots::none) run = read_slots(args, tile_index, of_tile, slots);
        const auto row_scales = shared.scales.read_rows(args, tile, of_tile);
        const auto fetch_next_keys = [&](int behind) {
            const UnionBlock block = next;
            next = block_from(behind);
            // Behind the union's end come rows before all keys, which are copied as zeros.
            key = block.queries != 0 ? static_cast<int>(tile.key) + block.block * BlockSize
                                     : -BlockSize;
            number = int64_t{tile.first_block + block.block} * args.groups + of_tile;
            group = of_tile;
            const BlockScales scales = shared.scales.read_block(args, number);
            shared.k_ring.empty[at.stage].wait(at.parity ^ 1);
            fetch_keys(args, shared, at.stage, group, key, block, scales);
            if (kAhead) fetch_last_values();
            __syncwarp();
        };
        const auto hand_over = [&] {
            shared.q_ring.empty[q_at.stage].wait(q_at.parity ^ 1);
            Task& task = shared.tasks[q_at.stage];
            task.visible[lane] = visible;
            if constexpr (Kind != Slots::none) {
                task.slots[lane] = slots;
                if (lane < kRuns) task.runs[lane] = run;
            }
            shared.scales.put_rows(row_scales, q_at.stage);
            __syncwarp();
            if (lane == 0)
                fetch_queries(args, shared, q_at.stage, tile, of_tile,
                              (count + Memory::kBlocks - 1) / Memory::kBlocks);
        };
        if (count <= Memory::kBlocks && lane == 0) queue.take(args);
        if (kAhead) hand_over();
        if (!kAhead) fetch_last_values();
        if (count > 0) fetch_next_keys(Memory::kBlocks);
        if (!kAhead) hand_over();
#pragma unroll 1
        for (int n = Memory::kBlocks; n < count;) {
            n += Memory::kBlocks;
            if (n >= count && lane == 0) queue.take(args);
            if (!kAhead) fetch_last_values();
            fetch_next_keys(n);
        }
    }
    if (!kAhead) fetch_last_values();
    shared.q_ring.empty[q_at.stage].wait(q_at.parity ^ 1);
    if (lane == 0) {
        shared.tasks[q_at.stage].steps = kNoTask;
        shared.q_ring.full[q_at.stage].expect(0);
    }
    wait_for_previous_kernel();  // the next kernel waits for this one alone
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
            best = softmax.reference[side] * (args.scale * kLog2E);
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
__global__ void __launch_bounds__(UnionThreads<kTeams<T, Dim, BlockSize>>::kThreads, 1)
    union_attention(const __grid_constant__ SparseUnionArgs args) {
    extern __shared__ __align__(1024) char memory[];
    using Memory = Shared<T, Dim, BlockSize, Kind>;
    using Threads = typename Memory::Threads;
    static_assert(sizeof(Memory) <= Threads::kSharedBytes);
    auto* const of_teams = reinterpret_cast<Memory*>(memory);
    constexpr bool kNarrow = kIsE4m3<T>;
    constexpr int kBlocks = Memory::kBlocks, kKeys = Memory::kKeys;
    if (threadIdx.x < Memory::kTeamsOf) {
        Memory& shared = of_teams[threadIdx.x];
        shared.q_ring.init(Threads::kConsumers);
        shared.k_ring.init(Threads::kConsumers);
        shared.v_ring.init(Threads::kConsumers);
        for (auto& slots : shared.slots) slots.init();
        fence_barriers();
    }
    __syncthreads();
    constexpr bool kAnySlots = Kind != Slots::none;
    // It begins at the end of KV-outer, which had the schedule: slots alone may not be there yet.
    if (!kAnySlots) wait_for_previous_kernel();
    if (threadIdx.x >= Memory::kTeamsOf * Threads::kTeamThreads) {
        setmaxnreg_dec<Threads::kProducer>();
        const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
        if (warp >= Memory::kTeamsOf) return;
        const int team = Memory::kTeamsOf == 1 ? 0 : warp;
        produce_blocks(args, of_teams[team], team);
        return;
    }
    setmaxnreg_inc<Threads::kConsumer>();

    const int team = Memory::kTeamsOf == 1 ? 0 : threadIdx.x / Threads::kTeamThreads;
    const int thread = threadIdx.x % Threads::kTeamThreads, warpgroup = thread / kWarpgroup;
    auto& shared = of_teams[team];
    const bool leader = thread % kWarp == 0;  // releases for its warp
    const int lane = thread % kWarp;
    const int row = thread / kWarp * 16 + lane / 4;
    int query[2];  // of an empty row: any, its results go nowhere
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
        if (leader) shared.kept[thread / kWarp] = {task.query, task.queries, task.group};
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
                int seen[kBlocks][2];
                for (int n = 0; n < kBlocks; ++n) {
                    const UnionBlock block = shared.blocks[k_at.stage][n];
                    for (int side = 0; side < 2; ++side)
                        seen[n][side] = (block.queries >> query[side]) & 1
                                            ? visible[side] - block.block * BlockSize
                                            : 0;
                }
                [[maybe_unused]] const BlockScales scales = shared.scales.at(k_at.stage);
                __syncwarp();  // all lanes have read them
                if (leader) shared.k_ring.empty[k_at.stage].arrive();
                if (leader && last) shared.q_ring.empty[q_at.stage].arrive();
                k_at.advance();
                [[maybe_unused]] bool any[kBlocks];
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
                    softmax.step(sum, seen, scale, factor, any);
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
            turns.begin();
            start_out(steps > 1);
            turns.end();
            end_out([] {});
        } else {
            start_slots();
            __syncwarp();  // all lanes have read the task
            if (leader) shared.q_ring.empty[q_at.stage].arrive();
        }
        finish<T, Dim, BlockSize, Kind>(args, shared, out, softmax, opaque_thread() % Threads::kTeamThreads);
    }
    turns.leave();
}

}  // namespace

template <typename T>
cudaError_t launch_sparse_union_sm90(const SparseUnionArgs& args, int sms, cudaStream_t stream) {
    return by_operand_sizes<T>(args.head_dim, args.block_size, [&]<int Dim, int BlockSize>() {
        const auto launch = [&]<Slots Kind>() {
            using S = Shared<T, Dim, BlockSize, Kind>;
            auto* const kernel = union_attention<T, Dim, BlockSize, Kind>;
            const cudaError_t error = allow_shared<S[S::kTeamsOf]>(kernel);
            if (error != cudaSuccess) return error;
            const int64_t items = int64_t{args.tile_count} * args.groups;
            return launch_early(kernel, dim3(static_cast<unsigned>(std::min<int64_t>(items, sms))),
                                S::Threads::kThreads, sizeof(S[S::kTeamsOf]), stream, args);
        };
        if (!args.any_slots()) return launch.template operator()<Slots::none>();
        if (args.group_size() % kRun == 0) return launch.template operator()<Slots::alike>();
        return launch.template operator()<Slots::mixed>();
    });
}
template cudaError_t launch_sparse_union_sm90<MSA_KERNEL_ELEMENT>(const SparseUnionArgs&, int,
                                                                  cudaStream_t);

}  // namespace msa::cuda
