// SPDX-License-Identifier: MIT
// A tile of 128 rows walks the union of its blocks, adds what KV-outer left for its rows, and
// writes the result.
//
//   producer    one warp streams the tile's queries, then keys and values of the union's blocks
//   (TMA) consumers   two warpgroups of 64 rows each. The product Q K^T of the next block runs
//   beside P V
//               of the last one (wgmma), with the online softmax between them. Rows of queries that
//               did not select a block are masked.
//   slots       meanwhile each warp has the first slots of its rows on their way. At the end it
//   adds
//               them, each weighted by its share of the softmax denominator: the second phase of
//               KV-outer.
//
// Thread blocks are persistent, one per SM: the producer runs ahead into the next tile.
#include <algorithm>

#include "gpu/device/attend_sm90.cuh"
#include "gpu/device/launch_sm90.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::cuda {
namespace {

using namespace sm90;

constexpr int kStages = 2, kSlotStages = 4;
constexpr int kRun = kSlotRun;  // neighbouring rows, one of each thread's two in a warp
constexpr int kRuns = kSparseTileRows / kRun;  // of a tile
static_assert(kSparseTileRows == kAttendRows);

/// How the tiles' queries fill slots: not at all; the rows of a run are one query's (G a multiple
/// of 8) and have as many slots; or each row of a run has a number of its own.
enum class Slots { none, alike, mixed };

/// Slots of a run of rows: row of the first in slot 0, and how many, at most.
struct Run {
    int first, count;
};

/// A (tile, group) pair as the producer hands it over. Group major, so that tiles that run together
/// share keys.
struct Task {
    int64_t query;
    int queries, group;
    int blocks;                                                  // of the union
    int visible[kSparseTileQueries], slots[kSparseTileQueries];  // of the queries
    Run runs[kRuns];
};

/// What a warp needs of its task at the end: out of the way of its registers.
struct Kept {
    int64_t query;
    int queries, group;
};

/// A warp's stream of slots, for its two runs of rows.
template <int Dim>
struct WarpSlots {
    struct __align__(16) Stage {
        char row[kRun][Dim * 2];
        float lse[kRun];
    };
    Stage stages[kSlotStages];
    Barrier full[kSlotStages];
    Run runs[2];
    int counts[2 * kRun];  // of the rows, where they are mixed
    int added;             // of all tiles

    /// By one thread, before a barrier of the block.
    __device__ void init() {
        for (Barrier& barrier : full) barrier.init(1);
        added = 0;
    }

    /// By one lane: starts with the n-th slot of both runs, if there is one; `stage` is free.
    __device__ void fetch(const SparseUnionArgs& args, Run run, Run next, int n, int stage) {
        if (n >= run.count) n -= run.count, run = next;
        if (n >= run.count) return;
        const int row = run.first + n * args.slot_rows();
        Stage& to = stages[stage];
        full[stage].expect(sizeof to.row + sizeof to.lse);
        const auto* const rows = static_cast<const char(*)[Dim * 2]>(args.workspace.partial_out);
        copy_bytes(to.row, rows + row, sizeof to.row, &full[stage], Keep::shortest);
        copy_bytes(to.lse, args.workspace.partial_lse + row, sizeof to.lse, &full[stage],
                   Keep::shortest);
    }

    /// By one lane: the first slots of a tile.
    __device__ void start(const SparseUnionArgs& args, Run run, Run next) {
        runs[0] = run, runs[1] = next;
        if (run.count + next.count == 0) return;
        for (int n = 0; n < kSlotStages; ++n) fetch(args, run, next, n, (added + n) % kSlotStages);
    }

    /// By the warp: adds the slots of a run to a row of the softmax state (best, total), base 2.
    /// What a run holds behind the slots of a row is not its own and may be anything.
    template <typename T, bool Mixed>
    __device__ void add(const SparseUnionArgs& args, int side, float (&sums)[Dim / 2], float& best,
                        float& total) {
        const Run run = runs[0], next = runs[1];
        const int count = side == 0 ? run.count : next.count, begin = added;
        if (count == 0) return;
        const int lane = threadIdx.x % kWarp;
        const int ahead = kSlotStages + (side == 0 ? 0 : run.count);
        const int mine = Mixed ? counts[kRun * side + lane / 4] : count;
#pragma unroll 1
        for (int n = 0; n < count; ++n) {
            const int at = (begin + n) % kSlotStages;
            full[at].wait((begin + n) / kSlotStages % 2);
            const bool there = !Mixed || n < mine;
            float factor = 1, weight = 0;
            if (there) {
                const float theirs = stages[at].lse[lane / 4], most = fmaxf(best, theirs);
                factor = exp2_fast(best - most), weight = exp2_fast(theirs - most);
                best = most;
                total = fmaf(total, factor, weight);
            }
            if (__any_sync(kAllLanes, factor != 1)) {
#pragma unroll
                for (int j = 0; j < Dim / 8; ++j)
#pragma unroll
                    for (int i = 0; i < 2; ++i) sums[4 * j + 2 * side + i] *= factor;
            }
            const auto* const chunks = reinterpret_cast<const uint4*>(stages[at].row);
            if (there) {
#pragma unroll
                for (int i = 0; i < Dim / 32; ++i)
                    add_chunk<T>(sums, side, i, chunks[slot_chunk<Dim>(lane / 4, i)], weight);
            }
            __syncwarp();  // all lanes have read it
            if (lane == 0) fetch(args, run, next, n + ahead, at);
        }
        if (lane == 0) added = begin + count;
        __syncwarp();
    }
};

template <int Dim, int BlockSize>
struct Shared {
    using S = AttendShape<Dim, BlockSize>;
    char q[S::kQueryBytes];
    char k[kStages][S::kKeyBytes];
    char v[kStages][S::kKeyBytes];
    WarpSlots<Dim> slots[AttendRows::kConsumers * 4];
    UnionBlock blocks[kStages];
    Task task;
    Kept kept[AttendRows::kConsumers * 4];  // per warp
    Ring<kStages> k_ring, v_ring;
    Barrier q_full, q_empty;  // task and q
};

/// The producer warp; its first lane issues the copies.
template <int Dim, int BlockSize>
__device__ void produce_blocks(const SparseUnionArgs& args, Shared<Dim, BlockSize>& shared) {
    using S = AttendShape<Dim, BlockSize>;
    Cursor<kStages> at;
    uint32_t q_parity = 1;
    const int lane = threadIdx.x % kWarp;
    const bool issues = lane == 0;
    const int heads = args.group_size();
    const uint32_t query_bytes = static_cast<uint32_t>(args.tile_rows() * S::kBoxes * kSwizzle);
    const int items = args.tile_count * args.groups;
    for (int index = static_cast<int>(blockIdx.x); index < items;
         index += static_cast<int>(gridDim.x)) {
        const int tile_index = index % args.tile_count, group = index / args.tile_count;
        const QueryTile tile = args.tiles[tile_index];
        const int count = args.workspace.block_counts[index];
        const UnionBlock* const blocks =
            args.workspace.blocks + int64_t{index} * args.top_k * args.tile_queries;
        const int visible = lane < tile.queries ? seen_keys(args.visible, tile.query + lane) : 0;
        int slots = 0;
        Run run{0, 0};
        if (args.any_slots()) {
            if (lane < args.tile_queries)
                slots = __popc(args.workspace.in_slots[args.row(tile_index, lane, group)]);
            run = {args.slot_row(tile_index, group, 0) + lane * kRun, 0};
            const int first = lane * kRun / heads, last = (lane * kRun + kRun - 1) / heads;
            for (int i = 0; i < kRun; ++i) {
                const int of_query = __shfl_sync(kAllLanes, slots, min(first + i, last));
                if (first < args.tile_queries) run.count = max(run.count, of_query);
            }
        }
        UnionBlock next = count > 0 ? blocks[0] : UnionBlock{};
        shared.q_empty.wait(q_parity);
        q_parity ^= 1;
        shared.task.visible[lane] = visible, shared.task.slots[lane] = slots;
        if (lane < kRuns) shared.task.runs[lane] = run;
        __syncwarp();
        if (issues) {
            shared.task.query = tile.query;
            shared.task.queries = tile.queries;
            shared.task.group = group;
            shared.task.blocks = count;
            shared.q_full.expect(count > 0 ? query_bytes : 0);
            for (int box = 0; count > 0 && box < S::kBoxes; ++box)
                copy_box(shared.q + box * S::kQueryBox, &args.q, 64 * box, group * heads,
                         static_cast<int>(tile.query), &shared.q_full);
        }
        for (int n = 0; n < count; ++n, at.advance()) {
            const UnionBlock block = next;
            if (n + 1 < count) next = blocks[n + 1];
            const int key = static_cast<int>(tile.key) + block.block * BlockSize;
            Barrier &k_full = shared.k_ring.full[at.stage], &v_full = shared.v_ring.full[at.stage];
            shared.k_ring.empty[at.stage].wait(at.parity ^ 1);
            if (issues) {
                shared.blocks[at.stage] = block;
                k_full.expect(S::kKeyBytes);
                for (int box = 0; box < S::kBoxes; ++box)
                    copy_box(shared.k[at.stage] + box * S::kKeyBox, &args.k, group * Dim + 64 * box,
                             key, &k_full);
            }
            shared.v_ring.empty[at.stage].wait(at.parity ^ 1);
            if (issues) {
                v_full.expect(S::kKeyBytes);
                for (int box = 0; box < S::kBoxes; ++box)
                    copy_box(shared.v[at.stage] + box * S::kKeyBox, &args.v, group * Dim + 64 * box,
                             key, &v_full);
            }
            __syncwarp();
        }
    }
}

/// The thread's number, anew: what follows from it need not be kept till then.
__device__ int opaque_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/// The two rows of a thread after the union: their slots, and the result.
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void finish(const SparseUnionArgs& args, Shared<Dim, BlockSize>& shared,
                       float (&out)[Dim / 2], const Softmax& softmax, int thread) {
    const int warp = thread / kWarp, lane = thread % kWarp, row = warp * 16 + lane / 4;
    const int heads = args.group_size();
    const Kept kept = shared.kept[warp];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        float total = softmax.sum[side];
        total += __shfl_xor_sync(kAllLanes, total, 1);
        total += __shfl_xor_sync(kAllLanes, total, 2);
        float best = softmax.running_max[side] * (args.scale * kLog2E);
        if constexpr (Kind != Slots::none)
            shared.slots[warp].template add<T, Kind == Slots::mixed>(args, side, out, best, total);
        const int query = (row + kRun * side) / heads;
        const bool wanted = query < kept.queries;  // not of an empty row
        const bool any = total != 0;               // NaN alone leaves no best score, but a total
        const float factor = any ? 1 / total : 0;
        const int64_t at = kept.query + query;
        if (wanted && has_nan(out, side, factor)) args.marked[at * args.groups + kept.group] = 1;
        const int64_t out_row =
            at * args.query_heads + kept.group * heads + (row + kRun * side) % heads;
        store_row<T>(out, side, factor, wanted, static_cast<char*>(args.out) + out_row * Dim * 2);
        if (wanted && lane % 4 == 0)
            args.lse[out_row] = any ? (best + log2f(total)) * kLn2 : -INFINITY;
    }
}

template <typename T, int Dim, int BlockSize, Slots Kind>
__global__ void __launch_bounds__(AttendRows::kThreads, 1)
    union_attention(const __grid_constant__ SparseUnionArgs args) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Shared<Dim, BlockSize>*>(memory);
    using S = AttendShape<Dim, BlockSize>;
    if (threadIdx.x == 0) {
        shared.k_ring.init(AttendRows::kConsumers);
        shared.v_ring.init(AttendRows::kConsumers);
        shared.q_full.init(1);
        shared.q_empty.init(4 * AttendRows::kConsumers);
        for (auto& slots : shared.slots) slots.init();
        fence_barriers();
    }
    __syncthreads();
    wait_for_previous_kernel();
    const int warpgroup = threadIdx.x / kWarpgroup;
    if (warpgroup == AttendRows::kConsumers) {
        setmaxnreg_dec<24>();
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
    WarpSlots<Dim>& slots = shared.slots[threadIdx.x / kWarp];
    Cursor<kStages> k_at, v_at;
    uint32_t q_parity = 0;
    const int items = args.tile_count * args.groups;
    constexpr bool kAnySlots = Kind != Slots::none;
    for (int index = static_cast<int>(blockIdx.x); index < items;
         index += static_cast<int>(gridDim.x)) {
        shared.q_full.wait(q_parity);
        q_parity ^= 1;
        const Task& task = shared.task;
        const int count = task.blocks;
        __syncwarp();  // all lanes are done with the last task
        if (leader) shared.kept[threadIdx.x / kWarp] = {task.query, task.queries, task.group};
        if (Kind == Slots::mixed && lane % 4 == 0)
            for (int side = 0; side < 2; ++side)
                slots.counts[kRun * side + lane / 4] = task.slots[query[side]];
        const int visible[2] = {task.visible[query[0]], task.visible[query[1]]};
        float out[Dim / 2] = {};
        Softmax softmax;
        if (count > 0) {
            uint32_t p[BlockSize / 4];
            float factor[2];
            auto take = [&](float(&sum)[BlockSize / 2]) {  // scores of the block at k_at
                const UnionBlock block = shared.blocks[k_at.stage];
                __syncwarp();  // all lanes have read it
                if (leader) shared.k_ring.empty[k_at.stage].arrive();
                k_at.advance();
                int seen[2];
                for (int side = 0; side < 2; ++side)
                    seen[side] = (block.queries >> query[side]) & 1
                                     ? visible[side] - block.block * BlockSize
                                     : 0;
                softmax.step(sum, seen, scale, factor);
            };
            auto keep_p = [&](const float(&sum)[BlockSize / 2]) {
#pragma unroll
                for (int i = 0; i < BlockSize / 4; ++i) p[i] = pack<T>(sum[2 * i], sum[2 * i + 1]);
            };
            shared.k_ring.full[k_at.stage].wait(k_at.parity);
            {
                float sum[BlockSize / 2];
                start_scores<T, Dim, BlockSize, kAttendRows>(sum, q, shared.k[k_at.stage]);
                if (kAnySlots && leader)
                    slots.start(args, task.runs[row / kRun], task.runs[row / kRun + 1]);
                wgmma_wait<0>();
                take(sum);
                keep_p(sum);
            }
            for (int n = 1; n < count; ++n) {
                float sum[BlockSize / 2];
                shared.k_ring.full[k_at.stage].wait(k_at.parity);
                start_scores<T, Dim, BlockSize, kAttendRows>(sum, q, shared.k[k_at.stage]);
                shared.v_ring.full[v_at.stage].wait(v_at.parity);
                start_values<T, Dim, BlockSize>(out, p, shared.v[v_at.stage], n > 1);
                wgmma_wait<1>();
                take(sum);
                wgmma_wait<0>();
                if (leader) shared.v_ring.empty[v_at.stage].arrive();
                v_at.advance();
                if (__any_sync(kAllLanes, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
                    for (int i = 0; i < Dim / 2; ++i) out[i] *= factor[i / 2 % 2];
                }
                keep_p(sum);
            }
            if (leader) shared.q_empty.arrive();
            shared.v_ring.full[v_at.stage].wait(v_at.parity);
            start_values<T, Dim, BlockSize>(out, p, shared.v[v_at.stage], count > 1);
            wgmma_wait<0>();
            if (leader) shared.v_ring.empty[v_at.stage].arrive();
            v_at.advance();
        } else {
            if (kAnySlots && leader)
                slots.start(args, task.runs[row / kRun], task.runs[row / kRun + 1]);
            __syncwarp();  // all lanes have read the task
            if (leader) shared.q_empty.arrive();
        }
        finish<T, Dim, BlockSize, Kind>(args, shared, out, softmax, opaque_thread());
    }
}

}  // namespace

template <typename T>
cudaError_t launch_sparse_union_sm90(const SparseUnionArgs& args, int sms, cudaStream_t stream) {
    return by_sizes(args.head_dim, args.block_size, [&]<int Dim, int BlockSize>() {
        using S = Shared<Dim, BlockSize>;
        auto* const kernel = !args.any_slots() ? union_attention<T, Dim, BlockSize, Slots::none>
                             : args.group_size() % kRun == 0
                                 ? union_attention<T, Dim, BlockSize, Slots::alike>
                                 : union_attention<T, Dim, BlockSize, Slots::mixed>;
        const cudaError_t error = allow_shared<S>(kernel);
        if (error != cudaSuccess) return error;
        const int64_t items = int64_t{args.tile_count} * args.groups;
        return launch_early(kernel, dim3(static_cast<unsigned>(std::min<int64_t>(items, sms))),
                            AttendRows::kThreads, sizeof(S), stream, args);
    });
}
template cudaError_t launch_sparse_union_sm90<MSA_KERNEL_ELEMENT>(const SparseUnionArgs&, int,
                                                                  cudaStream_t);

}  // namespace msa::cuda
