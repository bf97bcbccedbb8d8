// SPDX-License-Identifier: MIT
// The tasks that the producer of gpu/kernels/sparse_attention_union_sm90.cu hands to its consumers,
// and the slots that a warp adds to its rows.
#pragma once

#include "gpu/device/union_threads_sm90.cuh"
#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::cuda::sm90 {

constexpr int kRun = kSlotRun;  // neighbouring rows of a warp: each thread has one row of each run
constexpr int kRuns = kSparseTileRows / kRun;  // of a tile
static_assert(kSparseTileRows == kAttendRows);

/// Which slots the rows of a run have.
///   none    there are no slots
///   alike   the rows belong to one query (G is a multiple of 8), and have equally many slots
///   mixed   each row of a run has its own number of slots
enum class Slots { none, alike, mixed };

/// Slots of a run of rows: the row of partial_out where its slot 0 begins, and the largest number
/// of slots of a row.
struct Run {
    int first, count;
};

constexpr int kNoTask = -1;

/// A part of the union of a (tile, group) pair, from the producer to the consumers.
struct Task {
    int64_t query;
    int queries, group;
    int steps;                                                   // of the part, or kNoTask
    int keys;                                                    // of the sequence: KeyMap::keys_of
    int visible[kSparseTileQueries], slots[kSparseTileQueries];  // of the queries
    Run runs[kRuns];
    int part_row;  // see SparseSchedule
};

/// The parts of a task that a warp needs again at the end. In shared memory, to save registers.
template <int Blocks, int BlockSize>
struct TaskEnd {
    int64_t query;
    int queries, group;
    int there[Blocks];  // keys of the sequence from the start of each block of the last step on
    int part_row;

    __device__ void keep(const Task& task) {
        query = task.query, queries = task.queries, group = task.group;
    }
    __device__ void keep_end(const Task& task, const UnionBlock (&last)[Blocks]) {
        for (int n = 0; n < Blocks; ++n) there[n] = task.keys - last[n].block * BlockSize;
    }
};

/// Scales of e4m3 operands: those of the tasks' rows and of the blocks in the stages. Empty for
/// other types.
template <typename T, int Tasks, int Stages>
struct TaskScales {
    struct Rows {};
    __device__ static Rows read_rows(const SparseUnionArgs&, const QueryTile&, int) { return {}; }
    __device__ void put_rows(const Rows&, int) {}
    __device__ static BlockScales read_block(const SparseUnionArgs&, int64_t) { return {}; }
    __device__ void put_block(const BlockScales&, int) {}
    __device__ BlockScales at(int) const { return {}; }
};
template <int Tasks, int Stages>
struct TaskScales<__nv_fp8_e4m3, Tasks, Stages> {
    float row[Tasks][kSparseTileRows];
    BlockScales block[Stages];

    struct Rows {
        float scale[kSparseTileRows / kWarp];  // row lane + n kWarp
    };
    /// Called by a warp. Rows beyond the tile's last row get its scale.
    __device__ static Rows read_rows(const SparseUnionArgs& args, const QueryTile& tile,
                                     int group) {
        const int heads = args.group_size();
        Rows rows;
#pragma unroll
        for (int n = 0; n < kSparseTileRows / kWarp; ++n) {
            const int r =
                min(static_cast<int>(threadIdx.x) % kWarp + n * kWarp, tile.queries * heads - 1);
            rows.scale[n] = args.scales.q.at((tile.query + r / heads) * args.query_heads +
                                             group * heads + r % heads);
        }
        return rows;
    }
    __device__ void put_rows(const Rows& rows, int task) {
#pragma unroll
        for (int n = 0; n < kSparseTileRows / kWarp; ++n)
            row[task][threadIdx.x % kWarp + n * kWarp] = rows.scale[n];
    }
    __device__ static BlockScales read_block(const SparseUnionArgs& args, int64_t number) {
        return block_scales_at(args.scales, number);
    }
    __device__ void put_block(const BlockScales& scales, int stage) { block[stage] = scales; }
    __device__ BlockScales at(int stage) const { return block[stage]; }
};

/// A warp's stream of slots of type T, for its two runs of rows, with up to Stages copies in
/// flight.
template <typename T, int Dim, int Stages>
struct WarpSlots {
    struct __align__(16) Stage {
        char row[kRun][Dim * 2];
        float lse[kRun];
    };
    Stage stages[Stages];
    Barrier full[Stages];
    Run runs[2];
    int counts[2 * kRun];  // of slots of each row, if Slots::mixed
    int added;             // slots added so far, over all tiles

    /// Called by one thread, before a barrier of the thread block.
    __device__ void init() {
        for (Barrier& barrier : full) barrier.init(1);
        added = 0;
    }

    /// Called by one lane: starts the copy of the n-th slot, counted through both runs, to the free
    /// stage `stage`. Does nothing if there is no such slot.
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

    /// Called by one lane: starts the copies of a tile's first slots.
    __device__ void start(const SparseUnionArgs& args, Run run, Run next) {
        runs[0] = run, runs[1] = next;
        if (run.count + next.count == 0) return;
        for (int n = 0; n < Stages; ++n) fetch(args, run, next, n, (added + n) % Stages);
    }

    /// Called by the warp: adds the slots of a run to its rows, and to the softmax state (best,
    /// total) in base 2. If rows have different numbers of slots, data beyond a row's own slots may
    /// be anything.
    template <bool Mixed>
    __device__ void add(const SparseUnionArgs& args, int side, float (&sums)[Dim / 2], float& best,
                        float& total) {
        const Run run = runs[0], next = runs[1];
        const int count = side == 0 ? run.count : next.count, begin = added;
        if (count == 0) return;
        const int lane = threadIdx.x % kWarp;
        const int ahead = Stages + (side == 0 ? 0 : run.count);
        const int mine = Mixed ? counts[kRun * side + lane / 4] : count;
#pragma unroll 1
        for (int n = 0; n < count; ++n) {
            const int at = (begin + n) % Stages;
            full[at].wait((begin + n) / Stages % 2);
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

struct NoSlots {
    __device__ void init() {}
};
template <Slots Kind, typename T, int Dim, int Stages>
using SlotsOf = std::conditional_t<Kind == Slots::none, NoSlots, WarpSlots<T, Dim, Stages>>;

}  // namespace msa::cuda::sm90
