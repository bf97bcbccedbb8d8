// SPDX-License-Identifier: MIT
#include "core/cpu/block_scores.h"
#include "core/cpu/cpu_backend.h"

namespace msa::cpu {

void index_scores(const Problem& p, View<const float, 3> index_q, View<const float, 2> index_k,
                  View<float, 3> scores, int threads) {
    for_each_tile(p, index_q, score_loop(p, threads),
                  [&](const RowTile& tile, const Scratch& scratch) {
                      for (int64_t i = tile.queries.begin; i < tile.queries.end; ++i)
                          std::fill_n(scores[i].data(), scores[i].size(), -kInfinity);
                      for_each_block_score(p, index_k, tile, scratch, [&](int64_t row) {
                          float* const of_row = scores[tile.query(row)][tile.head(row)].data();
                          return [of_row](int64_t b, float score) { of_row[b] = score; };
                      });
                  });
}

}  // namespace msa::cpu
