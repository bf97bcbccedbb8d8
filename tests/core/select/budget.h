// SPDX-License-Identifier: MIT
// Of selectors that spend a budget unevenly over the queries.
#pragma once

#include <cmath>

#include "tests/core/select/policy.h"

namespace msa::test {

class BudgetTest : public Policy {
protected:
    /// The counted queries keep 4 blocks each on average, each group at most `fewer` less in all.
    void expect_budget_kept(const Tensor<float, 3>& got, int64_t fewer) const {
        for (int64_t r = 0; r < p_.kv_heads; ++r) {
            int64_t kept = 0;
            for (int64_t i : counted_)
                for (int64_t b = 0; b < blocks(i); ++b) kept += got(i, r, b) > -INFINITY;
            EXPECT_LE(kept, 4 * std::ssize(counted_));
            EXPECT_GE(kept, 4 * std::ssize(counted_) - fewer);
        }
    }
};

}  // namespace msa::test
