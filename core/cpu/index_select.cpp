// SPDX-License-Identifier: MIT
// index_scores and select_blocks fused: each row of a tile keeps its best blocks as they come.
// The sum of exponentials is formed anew over the chosen blocks alone: their share of the products
// is small, and no other block needs exponentials.
#include "core/cpu/block_scores.h"
#include "core/cpu/cpu_backend.h"
#include "core/cpu/support_sums.h"
#include "core/top_blocks.h"

namespace msa::cpu {

void index_select(const Problem& p, const SelectionRule& rule, const FloatIndexInput& in,
                  View<int32_t, 3> ids, View<float, 2> lse, int threads) {
    const ScoreScales scales(p, in.scales());
    const TileLoop loop = score_loop(p, threads);
    std::vector<TopBlocks> all;
    for (int64_t row = 0; row < threads * loop.tile_rows(); ++row) all.emplace_back(rule);
    for_each_tile(p, in.q(), loop, [&](const RowTile& tile, const Scratch& scratch) {
        TopBlocks* tops = all.data() + scratch.thread * loop.tile_rows();
        for (int64_t row = 0; row < tile.size(); ++row)
            tops[row].start(visible_blocks(tile.seen(row).count, p.block_size));
        for_each_block_score(p, in.k(), scales, tile, scratch, [&](int64_t row) {
            return [&top = tops[row]](int64_t b, float score) { top.offer(b, score); };
        });
        for (int64_t row = 0; row < tile.size(); ++row)
            tops[row].finish(ids[tile.query(row)][tile.head(row)]);
    });
    if (lse) index_lse(p, in.q(), in.k(), ids, lse, threads);
}

}  // namespace msa::cpu
