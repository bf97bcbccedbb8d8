// SPDX-License-Identifier: MIT
// eq:msa-index-score
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/reference/reference_backend.h"

namespace msa::reference {
namespace {

/// The largest of scaled(product) over the keys [begin, end); NaN if one is.
template <typename Scaled>
float best_score(View<const float, 1> row, const KeyTokens<float>& index_k, int64_t begin,
                 int64_t end, const Scaled& scaled) {
    float score = -std::numeric_limits<float>::infinity();
    for (int64_t j = begin; j < end; ++j) {
        const float s = scaled(dot(row, index_k.row(j)));
        if (s > score || std::isnan(s)) score = s;
    }
    return score;
}

/// score(query, group, block, begin, end) is that of the visible keys [begin, end) of a block.
template <typename Score>
void score_blocks(const Problem& p, View<float, 3> scores, const Score& score) {
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t b = 0; b < p.blocks(); ++b) {
                const KeyRange seen = visible[static_cast<size_t>(i)];
                const int64_t begin = std::min(b * p.block_size, seen.count),
                              end = std::min(begin + p.block_size, seen.count);
                scores(i, r, b) = score(i, r, b, seen.first + begin, seen.first + end);
            }
}

}  // namespace

void index_scores(const Problem& p, View<const float, 3> index_q, const KeyTokens<float>& index_k,
                  View<float, 3> scores) {
    score_blocks(p, scores, [&](int64_t i, int64_t r, int64_t, int64_t begin, int64_t end) {
        return best_score(index_q[i][r], index_k, begin, end,
                          [scale = p.index_scale()](double product) {
                              return static_cast<float>(scale * product);
                          });
    });
}

void index_scores(const Problem& p, View<const float, 3> index_q, const KeyTokens<float>& index_k,
                  const OperandScales& scales, View<float, 3> scores) {
    const ScoreScales own(p, scales);
    score_blocks(p, scores, [&](int64_t i, int64_t r, int64_t b, int64_t begin, int64_t end) {
        return best_score(index_q[i][r], index_k, begin, end, [&](double product) {
            return own.row(i, r).score(b, static_cast<float>(product));
        });
    });
}

}  // namespace msa::reference
