// SPDX-License-Identifier: MIT
// Sizes of the tuned sparse attention, stated once for its kernels and for the cost model in
// analysis/. No CUDA is needed to read them.
//   tile       neighbouring queries of one key-value head that walk the union of their blocks
//   pass       queries of one block that a warpgroup multiplies at once, KV-outer
//   work item  queries of one block that a thread block takes, KV-outer
//   chunk      consecutive tiles whose partial outputs fit into the slots whatever was selected
//   round      consecutive chunks whose partial outputs, once counted, fit into the slots together
//   step       queries of one block whose rows the gradient multiplies at once
#pragma once

#include <algorithm>
#include <cstdint>

namespace msa::cuda {

constexpr int kDecodeHeads = 16;  // heads that are multiplied at once, one query at a time
constexpr int kSparseTileRows = 128;
constexpr int kSparseTileQueries = 32;  // most of a tile: bits of UnionBlock::queries, lanes
constexpr int kSparsePassRows = 64;
constexpr int kSparsePassQueries = 32;  // most of a pass: the producer warp has a lane for each
constexpr int kSparseItemTiles = 32;    // most tiles of queries of a work item
constexpr int64_t kSparseSlotBytes = int64_t{1} << 31;  // most bytes of a round's partial outputs

// Bytes of a UnionBlock, of a BlockUse (the handle of a (query, block) pair), and of the mask that
// says which blocks of a (query, group) went to slots.
constexpr int kUnionBlockBytes = 8, kBlockUseBytes = 16, kSlotMaskBytes = 4;

// Sizes for groups of `heads` query heads. The kernels take at most 64 heads; beyond that the cost
// model assumes a single query.

constexpr int64_t sparse_tile_queries(int64_t heads) {
    return std::clamp<int64_t>(kSparseTileRows / heads, 1, kSparseTileQueries);
}
constexpr int64_t sparse_pass_queries(int64_t heads) {
    return std::clamp<int64_t>(kSparsePassRows / heads, 1, kSparsePassQueries);
}
constexpr int64_t sparse_item_queries(int64_t heads) {
    return kSparseItemTiles * sparse_tile_queries(heads);
}
/// With LoopOrder::automatic a tile's union holds the blocks that at least this many of its queries
/// select. There a masked step of 128 rows costs about as much as the slots of 48 rows that it
/// saves; steps of one-byte operands are cheaper (36 rows), and those of 64 channels cost half.
/// Measured for G = 16 with 128 channels in bf16, where 32 to 64 rows are alike, and for G = 4 with
/// 64. The union holds all blocks if the longest sequence has at most 4 k of them (64 channels: 8
/// k). A query of a square sequence then selects on average half of what it sees (a quarter), and
/// slots save too few steps to pay for the pass by blocks. Calls of few tiles on Hopper take unions
/// alone, whatever this says.
constexpr int64_t sparse_least_sharing(int64_t heads, int64_t head_dim, int64_t element_bytes,
                                       int64_t blocks, int64_t top_k) {
    const int64_t full = head_dim > 64 ? 2 : 1;  // times 64 channels
    if (blocks * full <= 8 * top_k) return 1;
    const int64_t rows = (element_bytes == 1 ? 18 : 24) * full;
    return std::clamp<int64_t>(rows / heads, 2, sparse_tile_queries(heads) + 1);
}
/// Tiles of a chunk. A query's partial outputs take k Hq dh elements of the operands' type, but at
/// least two bytes each.
constexpr int64_t sparse_chunk_tiles(int64_t query_heads, int64_t heads, int64_t head_dim,
                                     int64_t top_k, int64_t element_bytes) {
    const int64_t tile = sparse_tile_queries(heads);
    const int64_t queries =
        std::max(tile, kSparseSlotBytes /
                           (query_heads * head_dim * top_k * std::max<int64_t>(element_bytes, 2)));
    return (queries + tile - 1) / tile;
}

/// The most chunks that one schedule covers; a round lies within one schedule. Small groups get
/// fewer, since they have more uses per chunk.
constexpr int64_t sparse_scheduled_chunks(int64_t heads) {
    return std::min<int64_t>(16, 4 * heads);
}

// Sizes of the gradient. All its (query, block) pairs go KV-outer, and a slot holds a part of d_q
// in the operands' 16-bit type.
constexpr int kGradStepRows = 64;
constexpr int kGradStepQueries = 16;  // at most, so rows stay empty with fewer than 4 heads
constexpr int kGradTileQueries = 64;  // of a tile of its schedule, at most
// A work item has about 256 queries. If a step takes more than 4 queries, it has up to 64 steps, as
// long as a chunk of queries makes 2048 items. Sums over keys leave the registers after each item,
// and go to memory if a block has several items; too few items would not share out evenly.
constexpr int kGradItemUses = 256, kGradItemSteps = 64, kGradChunkItems = 2048;
constexpr int kGradUseBytes = 16;                     // the handle of a (query, block) pair
constexpr int64_t kGradSlotBytes = int64_t{1} << 32;  // most of a chunk of more than one tile

constexpr int64_t sparse_grad_step_queries(int64_t heads) {
    return std::clamp<int64_t>(kGradStepRows / heads, 1, kGradStepQueries);
}
/// About how many queries a work item has, for groups of `heads` heads and a chunk of `uses`
/// (query, block) pairs.
constexpr int64_t sparse_grad_item_uses(int64_t uses, int64_t heads) {
    const int64_t most = kGradItemSteps * sparse_grad_step_queries(heads);
    return std::clamp<int64_t>(uses / kGradChunkItems, kGradItemUses,
                               std::max<int64_t>(most, kGradItemUses));
}

/// Keys of a tile: those of a block and, if it has fewer than one product takes, keys after it that
/// no query sees.
constexpr int sparse_grad_tile_keys(int block_size) { return std::max(block_size, 64); }
/// Queries of a chunk, whole tiles. With 128 channels a chunk is a quarter of the call, because no
/// products are left to hide the addition of the last chunk's slots. With 64 channels products
/// leave memory hardly any time for the previous chunk's slots, so up to 32K queries are one chunk.
/// Measured from 8K to 128K tokens.
constexpr int64_t sparse_grad_chunk_queries(int64_t queries, int64_t query_heads, int64_t head_dim,
                                            int64_t top_k) {
    const int64_t fitting = kGradSlotBytes / (query_heads * head_dim * top_k * 2);
    const int64_t wanted =
        head_dim > 64 ? std::clamp<int64_t>(queries / 4, 4096, 16384) : int64_t{32768};
    return std::max<int64_t>(std::min(wanted, fitting) / kGradTileQueries, 1) * kGradTileQueries;
}

}  // namespace msa::cuda
