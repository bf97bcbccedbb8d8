// SPDX-License-Identifier: MIT
// eq:msa-topk with the forced blocks of SelectionRule
#include <algorithm>
#include <limits>

#include "core/reference/reference_backend.h"

namespace msa::reference {

void select_blocks(const Problem& p, const SelectionRule& rule, View<const float, 3> scores,
                   View<int32_t, 3> ids) {
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const int64_t blocks =
                visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size);
            std::vector<int32_t> kept, candidates;
            for (int64_t b = 0; b < blocks; ++b) {
                if (is_forced(rule, b, blocks))
                    kept.push_back(static_cast<int32_t>(b));
                else if (scores(i, r, b) > -std::numeric_limits<float>::infinity())  // not NaN
                    candidates.push_back(static_cast<int32_t>(b));
            }
            std::sort(candidates.begin(), candidates.end(), [&](int32_t a, int32_t b) {
                const float x = scores(i, r, a), y = scores(i, r, b);
                return x > y || (x == y && a < b);
            });
            for (int32_t b : candidates)
                if (static_cast<int64_t>(kept.size()) < rule.top_k) kept.push_back(b);
            std::sort(kept.begin(), kept.end());
            kept.resize(static_cast<size_t>(rule.top_k), kNoBlock);
            for (int64_t slot = 0; slot < rule.top_k; ++slot)
                ids(i, r, slot) = kept[static_cast<size_t>(slot)];
        }
}

}  // namespace msa::reference
