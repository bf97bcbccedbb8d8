// SPDX-License-Identifier: MIT
// eq:msa-index-score
#include <cmath>
#include <limits>

#include "core/reference/reference_backend.h"

namespace msa::reference {

void index_scores(const Problem& p, View<const float, 3> index_q, View<const float, 2> index_k,
                  View<float, 3> scores) {
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            for (int64_t b = 0; b < p.blocks(); ++b)
                scores(i, r, b) = -std::numeric_limits<float>::infinity();
            const KeyRange seen = visible[static_cast<size_t>(i)];
            for (int64_t j = 0; j < seen.count; ++j) {
                const auto s = static_cast<float>(p.index_scale() *
                                                  dot(index_q[i][r], index_k[seen.first + j]));
                float& block_score = scores(i, r, j / p.block_size);
                if (s > block_score || std::isnan(s)) block_score = s;
            }
        }
}

}  // namespace msa::reference
