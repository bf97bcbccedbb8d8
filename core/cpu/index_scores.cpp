// SPDX-License-Identifier: MIT
#include "core/cpu/block_scores.h"
#include "core/cpu/cpu_backend.h"

namespace msa::cpu {

void index_scores(const Problem& p, const FloatIndexInput& in, View<float, 3> scores, int threads) {
    const ScoreScales scales(p, in.scales());
    for_each_tile(p, in.q(), score_loop(p, threads),
                  [&](const RowTile& tile, const Scratch& scratch) {
                      for (int64_t i = tile.queries.begin; i < tile.queries.end; ++i)
                          std::fill_n(scores[i].data(), scores[i].size(), -kInfinity);
                      for_each_block_score(p, in.k(), scales, tile, scratch, [&](int64_t row) {
                          float* const of_row = scores[tile.query(row)][tile.head(row)].data();
                          return [of_row](int64_t b, float score) { of_row[b] = score; };
                      });
                  });
}

}  // namespace msa::cpu
