// SPDX-License-Identifier: MIT
// The producer warps of the gradient's kernel: they take work items and load the operands of their
// steps.
#pragma once

#include "gpu/device/grad_stage_sm90.cuh"

namespace msa::cuda::sm90 {

/// The producer warp that takes items and loads q and d_out, with a lane per query.
template <int Dim, int BlockSize>
__device__ void gather(const SparseGradArgs& args, Shared<Dim, BlockSize>& shared) {
    using S = GradShape<Dim, BlockSize>;
    const int lane = threadIdx.x % kWarp, heads = args.group_size;
    const int queries = args.step_queries, found = args.workspace.counts->items;
    const uint32_t bytes = static_cast<uint32_t>(2 * queries * heads * Dim * 2);
    const int row = min(lane, queries - 1) * heads * kSwizzle;
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
        // Lanes beyond the last query repeat it.
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
                    copy_box(shared.q[stage][box] + row, &args.q_one, 64 * box, group * heads,
                             query, &full, Keep::longest);
                    copy_box(shared.d_out[stage][box] + row, &args.d_out_one, 64 * box,
                             group * heads, query, &full, Keep::longest);
                }
        }
        // The next item is taken only now, while the products still have some steps to do. Taken
        // earlier, it could wait here while other thread blocks have no items left.
        item = take();
    }
}

/// Called by one thread: starts the copies of a block's keys and values.
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

/// The producer warp that loads keys and values, and lse, delta, seen keys and slots of a step's
/// rows, two rows per lane. Rows that no query fills get an lse that makes their probability 0.
template <int Dim, int BlockSize>
__device__ void gather_rows(const SparseGradArgs& args, Shared<Dim, BlockSize>& shared) {
    using S = GradShape<Dim, BlockSize>;
    const int lane = threadIdx.x % kWarp, heads = args.group_size;
    const int queries = args.step_queries;
    int use[2], head[2];
    for (int half = 0; half < 2; ++half) {
        use[half] = args.query_of_row(lane + kWarp * half);
        head[half] = lane + kWarp * half - use[half] * heads;
        if (use[half] >= queries) use[half] = 1 << 30;
    }
    const int none = static_cast<int>(args.queries * args.query_heads);
    uint32_t at = 0;
    for (uint32_t taken = 0;; ++taken) {
        const GradItem& item = wait_item(shared, taken);
        const int count = item.count, group = item.group, block = item.block;
        const GradUse* const uses = args.workspace.uses + item.begin;
        give_item_back(shared, taken);
        if (count == 0) return;
        const int first_head = group * heads;
        int4 next[2];  // query, slot, seen
        const auto fetch = [&](int first) {
#pragma unroll
            for (int half = 0; half < 2; ++half)
                next[half] = first + use[half] < count
                                 ? reinterpret_cast<const int4*>(uses)[first + use[half]]
                                 : make_int4(-1, -1, BlockSize, 0);
        };
        fetch(0);
        shared.keys_empty.wait(parity_of<1>(taken) ^ 1);
        if (lane == 0) copy_keys(args, shared, group, block);
        __syncwarp();
        for (int first = 0; first < count; first += queries, ++at) {
            const int stage = stage_of<S::kStages>(at);
            const int4 mine[2] = {next[0], next[1]};
            fetch(first + queries);
            const int least = __reduce_min_sync(kAllLanes, min(mine[0].z, mine[1].z));
            shared.empty[stage].wait(parity_of<S::kStages>(at) ^ 1);
            if (lane == 0) shared.least_seen[stage] = least;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = lane + kWarp * half;
                const int from = mine[half].x < 0
                                     ? none
                                     : mine[half].x * args.query_heads + first_head + head[half];
                copy_float(shared.lse[stage] + row, args.workspace.lse + from);
                copy_float(shared.delta[stage] + row, args.workspace.delta + from);
                shared.seen[stage][row] =
                    static_cast<uint8_t>(min(max(mine[half].z, 0), BlockSize));
                if (head[half] == 0 && use[half] < kGradStepQueries)
                    shared.slot[stage][use[half]] =
                        mine[half].y < 0 ? -1 : mine[half].y * heads * (Dim / 8);
            }
            arrive_after_copies(shared.full[stage]);
            __syncwarp();
            if (lane == 0) shared.full[stage].arrive();
        }
    }
}

}  // namespace msa::cuda::sm90
