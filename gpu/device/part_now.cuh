// SPDX-License-Identifier: MIT
// How a decode of index_select is cut by lengths that only the device knows: every thread block
// finds its own part.
#pragma once

#include "gpu/device/seen_keys.cuh"
#include "gpu/device/sm90.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/tile_parts.h"

namespace msa::cuda::sm90 {

struct PartNow {
    TilePart piece;
    QueryParts lists;  // of the tile's first query
    int fewer;         // keys that the tile's sequence has fewer than the batch says
};

/// The part of this thread block, called by all its threads; false: it has none. What writes the
/// lengths must be done. `keys`: shared memory for an int of each tile, free again on return.
__device__ inline bool find_part(const CutNow& now, const KeyLengths& lengths, int* keys,
                                 PartNow& found) {
    for (int t = static_cast<int>(threadIdx.x); t < now.tile_count;
         t += static_cast<int>(blockDim.x))
        keys[t] = max(0, now.tiles[t].most_visible - fewer_keys(lengths, now.tiles[t].sequence));
    __syncthreads();
    // All warps do the same from here on.
    const int lane = lane_id(), block = static_cast<int>(blockIdx.x);
    int all = 0;
    for (int t = lane; t < now.tile_count; t += kWarp) all += keys[t];
    all = __reduce_add_sync(kAllLanes, all);
    const int share = max((all + now.thread_blocks - 1) / now.thread_blocks, now.least_keys);
    const auto parts_at = [&](int t, bool finer) {
        return t < now.tile_count ? parts_of(keys[t], share, finer, now.most_parts) : 0;
    };
    int fine = 0;
    for (int t = lane; t < now.tile_count; t += kWarp) fine += parts_at(t, true);
    const bool finer = __reduce_add_sync(kAllLanes, fine) <= now.thread_blocks;
    bool any = false;
    for (int first = 0, before = 0; first < now.tile_count && !any; first += kWarp) {
        const int mine = parts_at(first + lane, finer);
        int end = mine;  // inclusive prefix sum over the lanes
#pragma unroll
        for (int step = 1; step < kWarp; step *= 2) {
            const int more = __shfl_up_sync(kAllLanes, end, step);
            if (lane >= step) end += more;
        }
        end += before;
        const unsigned later = __ballot_sync(kAllLanes, end > block);
        before = __shfl_sync(kAllLanes, end, kWarp - 1);
        if (later == 0) continue;
        const int at = __ffs(static_cast<int>(later)) - 1;
        const int parts = __shfl_sync(kAllLanes, mine, at);
        const int begin = __shfl_sync(kAllLanes, end, at) - parts;
        QueryTile tile = now.tiles[first + at];
        tile.most_visible = keys[first + at];
        found.fewer = fewer_keys(lengths, tile.sequence);
        found.piece = {tile, block - begin, parts};
        found.lists = {begin * now.most_queries, parts};
        any = true;
    }
    fence_shared();
    __syncthreads();
    return any;
}

}  // namespace msa::cuda::sm90
