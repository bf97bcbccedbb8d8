// SPDX-License-Identifier: MIT
// Sizes of the tuned sparse attention, stated once for its kernels and for the cost model in
// analysis/. No CUDA is needed to read them.
//   tile       neighbouring queries of one key-value head that walk the union of their blocks
//   pass       queries of one block that a warpgroup multiplies at once, KV-outer
//   work item  queries of one block that a thread block takes, KV-outer
//   chunk      consecutive tiles whose partial outputs fit into the slots together in any case
//   round      consecutive chunks whose partial outputs do so as it turned out
//   step       queries of one block whose rows the gradient multiplies at once
#pragma once

#include <algorithm>
#include <cstdint>

namespace msa::cuda {

constexpr int kDecodeHeads = 16;  // heads that are multiplied at once, one query at a time
constexpr int kSparseTileRows = 128;
constexpr int kSparseTileQueries = 32;  // of a tile, at most: bits of UnionBlock::queries, lanes
constexpr int kSparsePassRows = 64;
constexpr int kSparsePassQueries = 32;  // of a pass, at most: the producer warp has a lane for each
constexpr int kSparseItemTiles = 32;    // tiles of queries of one work item, at most
constexpr int64_t kSparseSlotBytes = int64_t{1} << 31;  // partial outputs of a round, at most

// Bytes of a UnionBlock, of a BlockUse (the handle of a (query, block) pair), and of the mask that
// says which blocks of a (query, group) went to slots.
constexpr int kUnionBlockBytes = 8, kBlockUseBytes = 16, kSlotMaskBytes = 4;

// Of groups of `heads` query heads. The kernels take at most 64 heads; the cost model goes on with
// a single query.

constexpr int64_t sparse_tile_queries(int64_t heads) {
    return std::clamp<int64_t>(kSparseTileRows / heads, 1, kSparseTileQueries);
}
constexpr int64_t sparse_pass_queries(int64_t heads) {
    return std::clamp<int64_t>(kSparsePassRows / heads, 1, kSparsePassQueries);
}
constexpr int64_t sparse_item_queries(int64_t heads) {
    return kSparseItemTiles * sparse_tile_queries(heads);
}
/// With LoopOrder::automatic a tile walks the blocks that this many of its queries share as a
/// union: about where a masked step of 128 rows costs as much as the slots of 48 rows that it
/// saves. Operands of one byte have cheaper steps: 36 rows; 64 channels, too: half of that.
/// Measured for G = 16 and 128 channels, in bf16, where 32 to 64 rows are alike, and for G = 4 and
/// 64. All blocks, where the longest sequence has at most 4 k of them (64 channels: 8 k): a query
/// of a square sequence then selects half of what it sees (a quarter), on the mean, and slots save
/// too few steps to pay for the pass by blocks.
constexpr int64_t sparse_least_sharing(int64_t heads, int64_t head_dim, int64_t element_bytes,
                                       int64_t blocks, int64_t top_k) {
    const int64_t full = head_dim > 64 ? 2 : 1;  // times 64 channels
    if (blocks * full <= 8 * top_k) return 1;
    const int64_t rows = (element_bytes == 1 ? 18 : 24) * full;
    return std::clamp<int64_t>(rows / heads, 2, sparse_tile_queries(heads) + 1);
}
/// Tiles of a chunk, where a query's partial outputs take k Hq dh elements: of the operands' type,
/// of two bytes at least.
constexpr int64_t sparse_chunk_tiles(int64_t query_heads, int64_t heads, int64_t head_dim,
                                     int64_t top_k, int64_t element_bytes) {
    const int64_t tile = sparse_tile_queries(heads);
    const int64_t queries =
        std::max(tile, kSparseSlotBytes /
                           (query_heads * head_dim * top_k * std::max<int64_t>(element_bytes, 2)));
    return (queries + tile - 1) / tile;
}

/// Chunks that one schedule covers, at most; a round is of one schedule. Small groups have many
/// uses.
constexpr int64_t sparse_scheduled_chunks(int64_t heads) {
    return std::min<int64_t>(16, 4 * heads);
}

// Of the gradient. All its (query, block) pairs go KV-outer, and a slot is a part of d_q in bf16.
constexpr int kGradStepRows = 64;
constexpr int kGradStepQueries = 16;  // at most: with fewer than 4 heads, rows stay empty
constexpr int kGradTileQueries = 64;  // of a tile of its schedule, at most
// Of a work item: about 256 queries, and where a step takes more than 4 queries more of them, up to
// 64 steps, as long as a chunk of queries makes 2048 items. Sums of keys leave the registers after
// each item, to memory where a block has several; too few items do not share out evenly.
constexpr int kGradItemUses = 256, kGradItemSteps = 64, kGradChunkItems = 2048;
constexpr int kGradUseBytes = 16;                     // the handle of a (query, block) pair
constexpr int64_t kGradSlotBytes = int64_t{1} << 32;  // of a chunk, at most, but for one tile

constexpr int64_t sparse_grad_step_queries(int64_t heads) {
    return std::clamp<int64_t>(kGradStepRows / heads, 1, kGradStepQueries);
}
/// Queries of a work item, about, of groups of `heads` heads and a chunk of `uses` (query, block)
/// pairs.
constexpr int64_t sparse_grad_item_uses(int64_t uses, int64_t heads) {
    const int64_t most = kGradItemSteps * sparse_grad_step_queries(heads);
    return std::clamp<int64_t>(uses / kGradChunkItems, kGradItemUses,
                               std::max<int64_t>(most, kGradItemUses));
}

/// Keys of a tile: a block and, where it has fewer than are multiplied at once, ones behind it,
/// which no query sees.
constexpr int sparse_grad_tile_keys(int block_size) { return std::max(block_size, 64); }
/// Queries of a chunk, whole tiles. With 128 channels a quarter of the call, as the last chunk's
/// slots are added when no products are left to hide that. Products of 64 channels leave memory
/// hardly any time for the slots of the chunk before, so that the call is one chunk up to 32K
/// queries. Measured from 8K to 128K tokens.
constexpr int64_t sparse_grad_chunk_queries(int64_t queries, int64_t query_heads, int64_t head_dim,
                                            int64_t top_k) {
    const int64_t fitting = kGradSlotBytes / (query_heads * head_dim * top_k * 2);
    const int64_t wanted =
        head_dim > 64 ? std::clamp<int64_t>(queries / 4, 4096, 16384) : int64_t{32768};
    return std::max<int64_t>(std::min(wanted, fitting) / kGradTileQueries, 1) * kGradTileQueries;
}

}  // namespace msa::cuda
