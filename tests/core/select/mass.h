// SPDX-License-Identifier: MIT
// What selectors see that look at the attention that queries have paid.
#pragma once

#include "tests/core/select/policy.h"

namespace msa::test {

class PolicyOfMass : public Policy {
protected:
    /// P_b of a token: attention summed over the block, mean over the group's heads.
    double mass(int64_t token, int64_t r, int64_t b) const {
        double sum = 0;
        for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
            const std::vector<double> weights = attention(token, h);
            for (int64_t j = 16 * b; j < std::min(16 * b + 16, length(token)); ++j)
                sum += weights[static_cast<size_t>(j)] / 2;
        }
        return sum;
    }
};

}  // namespace msa::test
