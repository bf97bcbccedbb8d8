// SPDX-License-Identifier: MIT
// The tiles of a team of gpu/kernels/sparse_attention_union_sm90.cu, as its producer warp takes
// them.
#pragma once

#include "gpu/device/seen_keys.cuh"
#include "gpu/device/union_task_sm90.cuh"

namespace msa::cuda::sm90 {

/// Reads the numbers of slots of a tile and group: `slots` of one query per lane, and the Run of
/// one run of rows per lane.
__device__ inline Run read_slots(const SparseUnionArgs& args, int tile_index, int group,
                                 int& slots) {
    const int lane = opaque_thread() % kWarp, heads = args.group_size();
    slots = 0;
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

/// What the producer's lanes have read about a task's rows.
template <typename Scales>
struct TaskRows {
    int visible, slots;
    Run run;
    typename Scales::Rows scales;
};
template <Slots Kind, typename Memory>
__device__ auto read_rows(const SparseUnionArgs& args, const Memory&, int tile_index,
                          const QueryTile& tile, int group) {
    using Scales = decltype(Memory::scales);
    const int lane = threadIdx.x % kWarp;
    TaskRows<Scales> rows{};
    rows.visible = lane < tile.queries ? seen_keys(args.visible, tile.query + lane) : 0;
    if constexpr (Kind != Slots::none) rows.run = read_slots(args, tile_index, group, rows.slots);
    rows.scales = Scales::read_rows(args, tile, group);
    return rows;
}

/// Blocks [begin, begin + count) of a union, and where their outputs go: see SparseSchedule.
struct UnionPart {
    int row, begin, count;
};

/// The queue of the parts of a round's (tile, group) pairs, for a team's producer warp. Groups are
/// outermost and tiles innermost, so that what runs at the same time shares keys.
template <int Teams, bool Parts>
struct TileQueue {
    int first_tile, tiles, index, taken = 0;

    __device__ TileQueue(const SparseUnionArgs& args, int team)
        : first_tile(round(args).first_chunk * args.chunk_tiles),
          tiles(min(round(args).chunks * args.chunk_tiles, args.tile_count - first_tile)),
          index(static_cast<int>(team * gridDim.x + blockIdx.x)) {}
    __device__ static SparseRound& round(const SparseUnionArgs& args) {
        return args.workspace.rounds[args.round];
    }
    __device__ static int parts(const SparseUnionArgs& args) { return Parts ? args.parts : 1; }
    __device__ bool any(const SparseUnionArgs& args) const {
        return index < tiles * args.groups * parts(args);
    }
    __device__ int tile() const { return first_tile + index % tiles; }
    __device__ int group(const SparseUnionArgs& args) const { return index / tiles / parts(args); }
    /// What the task walks of the union of `item`, in steps of StepBlocks blocks: parts are equally
    /// long, but the last ones may be shorter, or empty.
    template <int StepBlocks>
    __device__ UnionPart part(const SparseUnionArgs& args, int item) const {
        const int all = args.workspace.block_counts[item];
        if (!Parts) return {0, 0, all};
        const int part = index / tiles % parts(args);
        const int each = ceil_div(all, parts(args) * StepBlocks) * StepBlocks;
        return {args.part_row(item, part), part * each, max(0, min(each, all - part * each))};
    }
    /// Called by one lane: takes the next part from the counter, which next() moves to. It is
    /// called late, so that a tile does not wait here while another team is free.
    __device__ void take(const SparseUnionArgs& args) {
        taken = static_cast<int>(Teams * gridDim.x) + atomicAdd(&round(args).taken, 1);
    }
    __device__ void next() { index = __shfl_sync(kAllLanes, taken, 0); }
};

}  // namespace msa::cuda::sm90
