// SPDX-License-Identifier: MIT
// The producers of the gradient's kernel: they take work items and bring what their steps need.
// Groups of kGradBoxHeads heads and more: q and d_out come in boxes by bulk copies, from the warp
// of items. Smaller groups: the lanes of that warp gather q, and those of the other d_out.
#pragma once

#include "gpu/device/grad_rows_sm90.cuh"

namespace msa::cuda::sm90 {

/// An item's q and d_out, a lane per query. `at` counts the steps of the thread block.
template <int Dim, int BlockSize>
__device__ void gather_boxes(const SparseGradArgs& args, Shared<Dim, BlockSize>& shared,
                             const GradUse* uses, int group, int count, uint32_t& at) {
    using S = GradShape<Dim, BlockSize>;
    const int lane = lane_id(), heads = args.group_size, queries = args.step_queries;
    const uint32_t bytes = static_cast<uint32_t>(2 * queries * heads * Dim * 2);
    const int row = min(lane, queries - 1) * heads * kSwizzle;
    // Places that are left over repeat the last query.
    const auto query_of = [&](int first) { return uses[min(first + lane, count - 1)].query; };
    int next = query_of(0);
    for (int first = 0; first < count; first += queries, ++at) {
        const int query = next, stage = stage_of<S::kStages>(at);
        next = query_of(first + queries);
        Barrier& full = shared.full[stage];
        shared.empty[stage].wait(parity_of<S::kStages>(at) ^ 1);
        if (lane == 0) full.expect(bytes);
        __syncwarp();
        if (lane < queries)
#pragma unroll
            for (int box = 0; box < S::kBoxes; ++box) {
                copy_box(shared.q[stage][box] + row, &args.q_one, 64 * box, group * heads, query,
                         &full, Keep::longest);
                copy_box(shared.d_out[stage][box] + row, &args.d_out_one, 64 * box, group * heads,
                         query, &full, Keep::longest);
            }
    }
}

/// An item's q, 16 bytes a lane. Its last step is not handed on.
template <int Dim, int BlockSize>
__device__ void gather_by_lanes(const SparseGradArgs& args, Shared<Dim, BlockSize>& shared,
                                const GradUse* uses, int group, int count, uint32_t& at) {
    using S = GradShape<Dim, BlockSize>;
    const LaneRows rows(args);
    int next[LaneRows::kCount];
    const auto fetch = [&](int first) {
#pragma unroll
        for (int half = 0; half < LaneRows::kCount; ++half) {
            const int place = first + rows.use[half];
            next[half] = place < count ? uses[place].query : -1;
        }
    };
    fetch(0);
    for (int first = 0; first < count; first += args.step_queries, ++at) {
        int from[LaneRows::kCount];
#pragma unroll
        for (int half = 0; half < LaneRows::kCount; ++half)
            from[half] = rows.place(args, half, next[half], group);
        fetch(first + args.step_queries);
        const int stage = stage_of<S::kStages>(at);
        shared.empty[stage].wait(parity_of<S::kStages>(at) ^ 1);
        copy_rows<Dim>(shared.q[stage][0], args.q, from);
        if (first > 0) hand_on<1>(shared.full[stage_of<S::kStages>(at - 1)]);
    }
}

/// The producer warp of items and q; and of d_out, where that comes in boxes.
template <int Dim, int BlockSize>
__device__ void gather(const SparseGradArgs& args, Shared<Dim, BlockSize>& shared) {
    using S = GradShape<Dim, BlockSize>;
    const int lane = lane_id(), found = args.workspace.counts->items;
    const auto take = [&] {
        int taken = 0;
        if (lane == 0) taken = atomicAdd(&args.workspace.counts->items_taken, 1);
        taken = __shfl_sync(kAllLanes, taken, 0);
        return taken < found ? args.workspace.items[taken] : GradItem{};
    };
    uint32_t at = 0;
    GradItem item = take();
    for (uint32_t taken = 0;; ++taken) {
        const int item_stage = stage_of<kItemStages>(taken);
        shared.item_empty[item_stage].wait(parity_of<kItemStages>(taken) ^ 1);
        if (lane == 0) {
            shared.items[item_stage] = item;
            shared.item_full[item_stage].arrive();
        }
        if (item.count == 0) return;
        const int group = item.group, count = item.count;
        const GradUse* const uses = args.workspace.uses + item.begin;
        if (args.by_lanes)
            gather_by_lanes(args, shared, uses, group, count, at);
        else
            gather_boxes(args, shared, uses, group, count, at);
        // Not before: an item that waits here while other thread blocks have none left would be
        // done late. The products have some steps still.
        item = take();
        if (args.by_lanes) hand_on<0>(shared.full[stage_of<S::kStages>(at - 1)]);
    }
}

/// By one thread: keys and values of a block.
template <int Dim, int BlockSize>
__device__ void copy_keys(const SparseGradArgs& args, Shared<Dim, BlockSize>& shared, int group,
                          int block) {
    using S = GradShape<Dim, BlockSize>;
    const int key = static_cast<int>(args.key_blocks[block].key);
    shared.keys_full.expect(2 * S::kKeyBytes);
    for (int box = 0; box < S::kBoxes; ++box) {
        const int column = group * Dim + 64 * box;
        copy_box(shared.k + box * S::kKeyBox, &args.k, column, key, &shared.keys_full);
        copy_box(shared.v + box * S::kKeyBox, &args.v, column, key, &shared.keys_full);
    }
}

/// The producer warp of keys and values, of d_out where lanes gather it, and of what a step's rows
/// need, two rows a lane: rows that no query fills leave no probability.
template <int Dim, int BlockSize>
__device__ void gather_rows(const SparseGradArgs& args, Shared<Dim, BlockSize>& shared) {
    using S = GradShape<Dim, BlockSize>;
    constexpr int kHalves = LaneRows::kCount;
    const int lane = lane_id(), heads = args.group_size, queries = args.step_queries;
    const LaneRows rows(args);
    const int none = static_cast<int>(args.queries * args.query_heads);
    uint32_t at = 0;
    for (uint32_t taken = 0;; ++taken) {
        const GradItem& item = wait_item(shared, taken);
        const int count = item.count, group = item.group, block = item.block;
        const GradUse* const uses = args.workspace.uses + item.begin;
        give_item_back(shared, taken);
        if (count == 0) return;
        int4 next[kHalves];  // query, slot, seen
        const auto fetch = [&](int first) {
#pragma unroll
            for (int half = 0; half < kHalves; ++half) {
                const int place = first + rows.use[half];
                next[half] = place < count ? reinterpret_cast<const int4*>(uses)[place]
                                           : make_int4(-1, -1, BlockSize, 0);
            }
        };
        fetch(0);
        shared.keys_empty.wait(parity_of<1>(taken) ^ 1);
        if (lane == 0) copy_keys(args, shared, group, block);
        __syncwarp();
        for (int first = 0; first < count; first += queries, ++at) {
            const int stage = stage_of<S::kStages>(at);
            const int4 mine[kHalves] = {next[0], next[1]};
            const int from[kHalves] = {rows.place(args, 0, mine[0].x, group),
                                       rows.place(args, 1, mine[1].x, group)};
            fetch(first + queries);
            const int least = __reduce_min_sync(kAllLanes, min(mine[0].z, mine[1].z));
            shared.empty[stage].wait(parity_of<S::kStages>(at) ^ 1);
            if (lane == 0) shared.least_seen[stage] = least;
#pragma unroll
            for (int half = 0; half < kHalves; ++half) {
                const int row = lane + kWarp * half, known = from[half] < 0 ? none : from[half];
                copy_float(shared.lse[stage] + row, args.workspace.lse + known);
                copy_float(shared.delta[stage] + row, args.workspace.delta + known);
                shared.seen[stage][row] =
                    static_cast<uint8_t>(min(max(mine[half].z, 0), BlockSize));
                if (rows.head[half] == 0 && rows.use[half] < kGradStepQueries)
                    shared.slot[stage][rows.use[half]] =
                        mine[half].y < 0 ? -1 : mine[half].y * heads * (Dim / 8);
            }
            arrive_after_copies(shared.full[stage]);
            if (args.by_lanes) {
                copy_rows<Dim>(shared.d_out[stage][0], args.d_out, from);
                if (first > 0) hand_on<1>(shared.full[stage_of<S::kStages>(at - 1)]);
            } else {
                __syncwarp();
                if (lane == 0) shared.full[stage].arrive();
            }
        }
        if (args.by_lanes) hand_on<0>(shared.full[stage_of<S::kStages>(at - 1)]);
    }
}

}  // namespace msa::cuda::sm90
