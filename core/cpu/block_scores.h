// SPDX-License-Identifier: MIT
// eq:msa-index-score, tile by tile: what index_scores writes down and index_select ranks at once.
#pragma once

#include <algorithm>

#include "core/cpu/tile_loop.h"

namespace msa::cpu {

/// Keys of one step, whole blocks.
constexpr int64_t block_step(int64_t block_size) {
    return block_size * std::max<int64_t>(1, 128 / block_size);
}

/// Calls on_score(row, block, score) for the visible blocks of each row of the tile, each
/// row's in ascending order.
template <typename OnScore>
void for_each_block_score(const Problem& p, View<const float, 2> index_k, const RowTile& tile,
                          const Scratch& scratch, OnScore on_score) {
    const float* keys = index_k.data() + tile.seen(0).first * p.index_dim;
    for_each_strip(
        tile, keys, p.index_dim, block_step(p.block_size), scratch, [](int64_t, int64_t) {},
        [&](const LogitStrip& strip) {
            for (int64_t r = 0; r < strip.rows; ++r) {
                const int64_t seen = strip.seen[static_cast<size_t>(r)];
                for (int64_t j = 0; j < seen; j += p.block_size)
                    on_score(strip.first_row + r, (strip.first_key + j) / p.block_size,
                             p.block_size == 1
                                 ? strip.row(r)[j]
                                 : max_or_nan(strip.row(r) + j, std::min(p.block_size, seen - j)));
            }
        });
}

/// The loop that for_each_block_score expects: all groups share the index keys.
inline TileLoop score_loop(const Problem& p, int threads) {
    return {.heads = p.kv_heads,
            .factor = static_cast<float>(p.index_scale()),
            .step = block_step(p.block_size),
            .threads = threads};
}

}  // namespace msa::cpu
