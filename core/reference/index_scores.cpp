// SPDX-License-Identifier: MIT
// eq:msa-index-score
#include <cmath>
#include <limits>

#include "core/reference/reference_backend.h"

namespace msa::reference {
namespace {

/// scaled(query, group, block, product) is what a product is to the largest of its block.
template <typename Scaled>
void score_blocks(const Problem& p, View<const float, 3> index_q, const KeyTokens<float>& index_k,
                  View<float, 3> scores, const Scaled& scaled) {
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            for (int64_t b = 0; b < p.blocks(); ++b)
                scores(i, r, b) = -std::numeric_limits<float>::infinity();
            const KeyRange seen = visible[static_cast<size_t>(i)];
            for (int64_t j = 0; j < seen.count; ++j) {
                const int64_t b = j / p.block_size;
                const float s = scaled(i, r, b, dot(index_q[i][r], index_k.row(seen.first + j)));
                float& block_score = scores(i, r, b);
                if (s > block_score || std::isnan(s)) block_score = s;
            }
        }
}

}  // namespace

void index_scores(const Problem& p, View<const float, 3> index_q, const KeyTokens<float>& index_k,
                  View<float, 3> scores) {
    const double scale = p.index_scale();
    score_blocks(p, index_q, index_k, scores, [scale](int64_t, int64_t, int64_t, double product) {
        return static_cast<float>(scale * product);
    });
}

void index_scores(const Problem& p, View<const float, 3> index_q, const KeyTokens<float>& index_k,
                  const OperandScales& scales, View<float, 3> scores) {
    const ScoreScales own(p, scales);
    score_blocks(p, index_q, index_k, scores, [&](int64_t i, int64_t r, int64_t b, double product) {
        return own.row(i, r).score(b, static_cast<float>(product));
    });
}

}  // namespace msa::reference
