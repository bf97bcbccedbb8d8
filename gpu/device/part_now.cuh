// SPDX-License-Identifier: MIT
// How index_select is cut by lengths that only the device knows: a thread block finds the part of
// its number.
#pragma once

#include "gpu/device/seen_keys.cuh"
#include "gpu/device/sm90.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/kernels/index_select_sm90.h"

namespace msa::cuda::sm90 {

constexpr uint32_t kListed = 1 << 16;  // above the parts of a CutNow
static_assert(kListed > 2 * kMostTilesNow);

/// The part of this thread block, called by all its threads; false: it has none. What writes the
/// lengths must be done. `keys`: shared memory for an int of each tile, free again on return.
__device__ inline bool find_part(const CutNow& now, const KeyLengths& lengths, int* keys,
                                 PartNow& found) {
    for (int t = static_cast<int>(threadIdx.x); t < now.tile_count;
         t += static_cast<int>(blockDim.x))
        keys[t] = max(0, now.tiles[t].most_visible - fewer_keys(lengths, now.tiles[t].sequence));
    __syncthreads();
    // All warps do the same from here on.
    const int lane = lane_id();
    int64_t all = 0;
    for (int t = lane; t < now.tile_count; t += kWarp) all += keys[t];
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) all += __shfl_xor_sync(kAllLanes, all, step);
    const auto share = static_cast<int>(
        max((all + now.thread_blocks - 1) / now.thread_blocks, int64_t{now.least_keys}));
    const auto parts_at = [&](int t, bool finer) {
        return t < now.tile_count ? parts_of(keys[t], share, finer, now.most_parts) : 0;
    };
    int fine = 0;
    for (int t = lane; t < now.tile_count; t += kWarp) fine += parts_at(t, true);
    const bool finer = __reduce_add_sync(kAllLanes, fine) <= now.thread_blocks;
    bool any = false;
    uint32_t before = 0;
    for (int first = 0; first < now.tile_count && !any; first += kWarp) {
        const int mine = parts_at(first + lane, finer);
        // An inclusive prefix sum over the lanes: of parts and, in multiples of kListed, of those
        // with lists, which tiles of several parts have.
        uint32_t end = mine + (mine > 1 ? mine * kListed : 0);
#pragma unroll
        for (int step = 1; step < kWarp; step *= 2) {
            const uint32_t more = __shfl_up_sync(kAllLanes, end, step);
            if (lane >= step) end += more;
        }
        end += before;
        const unsigned later = __ballot_sync(kAllLanes, end % kListed > blockIdx.x);
        before = __shfl_sync(kAllLanes, end, kWarp - 1);
        if (later == 0) continue;
        const int at = __ffs(static_cast<int>(later)) - 1;
        const int parts = __shfl_sync(kAllLanes, mine, at);
        const uint32_t ended = __shfl_sync(kAllLanes, end, at);
        const int begin = static_cast<int>(ended % kListed) - parts;
        const int listed = static_cast<int>(ended / kListed) - parts;
        QueryTile tile = now.tiles[first + at];
        tile.most_visible = keys[first + at];
        found.fewer = fewer_keys(lengths, tile.sequence);
        found.piece = {tile, static_cast<int>(blockIdx.x) - begin, parts};
        found.lists = {parts > 1 ? listed * now.most_queries : 0, parts};
        any = true;
    }
    fence_shared();
    __syncthreads();
    return any;
}

/// Writes what the kernel behind index_select needs to know of a tile's queries, if this is the
/// tile's first part. Called by all threads, or by the first ones if they are as many as queries.
__device__ inline void tell_queries(const IndexSelectArgs& args, const PartNow& part) {
    const QueryTile& tile = part.piece.tile;
    if (part.piece.part != 0) return;
    for (int at = static_cast<int>(threadIdx.x); at < tile.queries;
         at += static_cast<int>(blockDim.x)) {
        const int64_t query = tile.query + at;
        args.now.of_query[query] = {part.lists.before + at * part.piece.parts, part.piece.parts};
        args.now.seen[query] = max(0, seen_keys(args.visible, query) - part.fewer);
    }
}

/// A part that another kernel found; past L1, which may have older ones.
__device__ inline PartNow found_part(const PartNow* from) {
    constexpr int kWords = sizeof(PartNow) / sizeof(uint64_t);
    static_assert(kWords * sizeof(uint64_t) == sizeof(PartNow));
    uint64_t words[kWords];
#pragma unroll
    for (int n = 0; n < kWords; ++n) words[n] = __ldcg(reinterpret_cast<const uint64_t*>(from) + n);
    PartNow part;
    memcpy(&part, words, sizeof part);
    return part;
}

}  // namespace msa::cuda::sm90
