// SPDX-License-Identifier: MIT
// Vertical and slash lines of attention, which MInference and FlexPrefill score blocks by.
#pragma once

#include "tests/core/select/policy.h"

namespace msa::test {

class LinesPolicy : public Policy {
protected:
    using Policy::Policy;

    /// Attention of the last `probe` queries before position `end` on the keys of block b, and on
    /// its distances from the query, summed over the group's heads.
    double lines(int64_t token, int64_t r, int64_t b, int64_t probe, int64_t end) const {
        double sum = 0;
        for (int64_t i = std::max<int64_t>(0, end - probe); i < end; ++i)
            for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
                const std::vector<double>& weights = kept_attention(start(token) + i, h);
                for (int64_t j = 16 * b; j <= std::min(16 * b + 15, position(token)); ++j) {
                    if (j <= i) sum += weights[static_cast<size_t>(j)];
                    const int64_t distance = position(token) - j;
                    if (distance <= i) sum += weights[static_cast<size_t>(i - distance)];
                }
            }
        return sum;
    }
};

}  // namespace msa::test
