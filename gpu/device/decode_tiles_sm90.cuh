// SPDX-License-Identifier: MIT
// What a cluster of the decode kernel answers, the memory of its thread blocks, and the ring in it
// that tiles of keys and values pass through.
#pragma once

#include <algorithm>

#include "gpu/device/attend_e4m3_sm90.cuh"
#include "gpu/device/clusters_sm90.cuh"
#include "gpu/device/decode_keys_sm90.cuh"
#include "gpu/device/part_of_block.cuh"
#include "gpu/kernels/sparse_attention_decode_sm90.h"

namespace msa::cuda::sm90 {

static_assert(kDecodeHeads % kDecodeCluster == 0);

/// Shared memory of a thread block, whose ring has `Tiles` places. Tiles are counted from 0: that
/// of keys of the n-th block is 2 n, that of its values 2 n + 1.
template <typename T, int Dim, int BlockSize, int Tiles>
struct DecodeMemory {
    using S = OperandShape<T, Dim, BlockSize>;
    static constexpr int kTiles = Tiles;
    union {
        char tiles[kTiles][S::kKeyBytes];            // a ring
        float out[kDecodeWarps][kDecodeHeads][Dim];  // after the last tile
    };
    float best[kDecodeWarps][kDecodeHeads], total[kDecodeWarps][kDecodeHeads];
    // Of this thread block's heads, from every one of the cluster: 16 in all. Not over the tiles,
    // which it may still need.
    struct alignas(16) {
        float out[kDecodeHeads][Dim];
        float2 sums[kDecodeHeads];  // best, total
    } parts;
    Barrier all_parts, full[kTiles];
};

/// Shared memory of each of two thread blocks of an SM.
constexpr size_t kHalfOfAnSm = (228 << 10) / 2 - (1 << 10);
/// Tiles of the ring of each of `ToSm` thread blocks of an SM, 1 or 2. One alone has at least 4:
/// all tiles of its two blocks, of 16 that eight share.
template <typename T, int Dim, int BlockSize, int ToSm>
constexpr int kDecodeTiles = [] {
    constexpr int kBytes = OperandShape<T, Dim, BlockSize>::kKeyBytes;
    constexpr size_t kRing =
        kHalfOfAnSm - sizeof(DecodeMemory<T, Dim, BlockSize, 1>) +
        std::max<size_t>(kBytes, kDecodeWarps * kDecodeHeads * Dim * sizeof(float));
    return std::clamp(static_cast<int>(kRing / kBytes), ToSm == 1 ? 4 : 1, 8);
}();

/// What a cluster answers, and this thread block's place in it.
struct DecodePart {
    int rank, cluster, own_heads;  // place in the cluster, its thread blocks, heads of each
    int heads, first_head, group;
    int64_t query, row, first_row;  // query; (query, group); (query, head) of the first head
    KeyRange visible;
    int first_key;                      // the place of the first key of the query's sequence
    int first_block = 0, sequence = 0;  // of the query's sequence: of e4m3; of pages and lengths

    __device__ explicit DecodePart(const SparseDecodeArgs& args)
        : rank(rank_in_cluster()),
          cluster(cluster_size()),
          own_heads(kDecodeHeads / cluster),
          heads(args.group_size()) {
        const int parts = (heads + kDecodeHeads - 1) / kDecodeHeads;
        const int item = static_cast<int>(blockIdx.x) / cluster;
        first_head = item % parts * kDecodeHeads;
        row = item / parts;
        query = row / args.groups;
        group = static_cast<int>(row % args.groups);
        first_row = query * args.query_heads + group * heads + first_head;
        visible = args.visible[query];
        first_key = static_cast<int>(visible.first);
        if (args.of_query == nullptr) return;
        const QueryTile& of = args.of_query[query];
        first_block = of.first_block, sequence = of.sequence;
        if (args.key_map.paged()) first_key = args.key_map.first_place(sequence);
    }
    /// Where the `part`-th thread block's part of one of this thread block's heads is.
    __device__ int place(int part, int own_head) const { return part * own_heads + own_head; }
};

/// The blocks of this thread block, the n-th in lane n of each warp: k is at most 32. Cut: a block
/// may be two of BlockSize keys, of which a cluster of two or more thread blocks has at most 64.
template <int BlockSize, bool Cut>
struct DecodeBlocks {
    int32_t id;        // -1: none
    TileRowsAt rows;   // in the first warp, which copies
    int count, tiles;  // tiles: to be copied

    /// In the warm-up there is one block, which is not copied.
    __device__ DecodeBlocks(const SparseDecodeArgs& args, const DecodePart& part, bool live) {
        const int slot = part.rank + static_cast<int>(threadIdx.x) % kWarp * part.cluster;
        if constexpr (Cut)
            id = part_of_block<BlockSize>(args, part.row, slot);
        else
            id = slot < args.top_k ? __ldcg(args.ids + part.row * args.top_k + slot) : -1;
        if (!live) id = -1;
        if (threadIdx.x < kWarp && id >= 0) rows = {args.key_map, part.first_key + id * BlockSize};
        const uint32_t none = __ballot_sync(kAllLanes, id < 0);
        count = none != 0 ? __ffs(none) - 1 : kWarp;
        tiles = 2 * count;
        if (!live) count = 1;
    }
    __device__ int id_of(int n) const { return __shfl_sync(kAllLanes, id, n); }
    __device__ TileRowsAt rows_of(int n) const {
        TileRowsAt at;
        at.row = __shfl_sync(kAllLanes, rows.row, n);
        at.second = __shfl_sync(kAllLanes, rows.second, n);
        return at;
    }
};

/// Starts the copy of a tile, if there is one.
template <typename Blocks, typename Memory>
__device__ void fetch_tile(const SparseDecodeArgs& args, const DecodePart& part,
                           const Blocks& blocks, Memory& shared, int tile) {
    using S = typename Memory::S;
    if (threadIdx.x >= kWarp || tile >= blocks.tiles) return;
    const TileRowsAt rows = blocks.rows_of(tile / 2);
    if (threadIdx.x != 0) return;
    const int stage = stage_of<Memory::kTiles>(tile);
    shared.full[stage].expect(S::kKeyBytes);
    copy_keys<S::kBoxes, S::kKeyBox>(shared.tiles[stage], tile % 2 == 0 ? &args.k : &args.v,
                                     args.key_map, rows, part.group, shared.full[stage]);
}

/// Copies the next tile to the place of one that all warps are about to have read.
template <typename Blocks, typename Memory>
__device__ void replace_tile(const SparseDecodeArgs& args, const DecodePart& part,
                             const Blocks& blocks, Memory& shared, int tile) {
    if (tile + Memory::kTiles >= blocks.tiles) return;
    fence_shared();
    __syncthreads();
    fetch_tile(args, part, blocks, shared, tile + Memory::kTiles);
}

}  // namespace msa::cuda::sm90
