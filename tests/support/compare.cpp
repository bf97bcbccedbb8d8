// SPDX-License-Identifier: MIT
#include "tests/support/compare.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace msa::test {

testing::AssertionResult selection_follows(const Problem& p, const SelectionRule& rule,
                                           View<const float, 3> scores, View<const int32_t, 3> ids,
                                           double bound) {
    try {
        check_selection(p, ids);
    } catch (const InputError& broken) {
        return testing::AssertionFailure() << broken.what();
    }
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const auto fail = [&] {
                return testing::AssertionFailure() << "query " << i << ", group " << r << ": ";
            };
            const int64_t blocks =
                visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size);
            const std::span<const int32_t> kept = selected(ids, i, r);
            int64_t candidates = 0;
            // The weakest kept and the strongest dropped free block, by (score, lower id first).
            int64_t weakest = -1, strongest = -1;
            const auto better = [&](int64_t a, int64_t b) {
                return scores(i, r, a) > scores(i, r, b) ||
                       (scores(i, r, a) == scores(i, r, b) && a < b);
            };
            for (int64_t b = 0; b < blocks; ++b) {
                const bool in = std::binary_search(kept.begin(), kept.end(), b);
                if (is_forced(rule, b, blocks)) {
                    ++candidates;
                    if (!in) return fail() << "forced block " << b << " is missing";
                } else if (scores(i, r, b) > -std::numeric_limits<float>::infinity()) {
                    ++candidates;
                    if (in && (weakest < 0 || better(weakest, b))) weakest = b;
                    if (!in && (strongest < 0 || better(b, strongest))) strongest = b;
                } else if (in) {
                    return fail() << "block " << b << " without a score is kept";
                }
            }
            if (static_cast<int64_t>(kept.size()) != std::min(rule.top_k, candidates))
                return fail() << kept.size() << " blocks kept of " << candidates
                              << " candidates, k " << rule.top_k;
            if (weakest < 0 || strongest < 0 || better(weakest, strongest)) continue;
            const double gap = double{scores(i, r, strongest)} - double{scores(i, r, weakest)};
            if (bound == 0 || gap > 2 * bound)
                return fail() << "kept block " << weakest << " with score " << scores(i, r, weakest)
                              << " instead of block " << strongest << " with "
                              << scores(i, r, strongest) << ", bound " << bound;
        }
    return testing::AssertionSuccess();
}

}  // namespace msa::test
