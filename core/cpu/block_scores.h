// SPDX-License-Identifier: MIT
// eq:msa-index-score, tile by tile. index_scores stores these scores; index_select ranks them
// directly.
#pragma once

#include <algorithm>

#include "core/cpu/tile_loop.h"
#include "core/number/operand_scales.h"

namespace msa::cpu {

/// Keys of one step, whole blocks.
constexpr int64_t block_step(int64_t block_size) {
    return block_size * std::max<int64_t>(1, 128 / block_size);
}

/// Calls taker(row) for each row of the tile and step, and the function that it returns with
/// (block, score) for the visible blocks of the step. Each row's blocks come in ascending order.
/// Products are scaled after the maximum: products that are exact and equal, like those of small
/// integers, then give equal scores, and so the same ids, on every backend.
template <typename Taker>
void for_each_block_score(const Problem& p, const KeyTokens<float>& index_k,
                          const ScoreScales& scales, const RowTile& tile, const Scratch& scratch,
                          Taker taker) {
    for_each_strip(
        tile, index_k, 0, block_step(p.block_size), scratch, [](int64_t, int64_t) {},
        [&](const LogitStrip& strip) {
            const int64_t first_block = strip.first_key / p.block_size;
            for (int64_t r = 0; r < strip.rows; ++r) {
                const float* const products = strip.row(r);
                const int64_t seen = strip.seen[static_cast<size_t>(r)];
                const int64_t row = strip.first_row + r;
                const auto take = taker(row);
                const ScoreScales::Row own = scales.row(tile.query(row), tile.head(row));
                if (p.block_size == 1) {
                    for (int64_t j = 0, b = first_block; j < seen; ++j, ++b)
                        take(b, own.score(b, products[j]));
                    continue;
                }
                for (int64_t j = 0, b = first_block; j < seen; j += p.block_size, ++b)
                    take(b,
                         own.score(b, max_or_nan(products + j, std::min(p.block_size, seen - j))));
            }
        });
}

/// The loop that for_each_block_score expects: all groups share the index keys.
inline TileLoop score_loop(const Problem& p, int threads) {
    return {.heads = p.kv_heads, .factor = 1, .step = block_step(p.block_size), .threads = threads};
}

}  // namespace msa::cpu
