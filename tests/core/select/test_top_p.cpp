// SPDX-License-Identifier: MIT
#include "tests/core/select/budget.h"

namespace msa::test {
namespace {

class TopP : public BudgetTest {};

TEST_F(TopP, KeepsTheFewestBlocksThatCoverOneShare) {
    const SelectionRule rule{.top_k = 4};
    const Tensor<float, 3> got = scores("top-p", 0, rule), mass = mass_of(p_, q_.view());
    double kept = 0, budget = 0;
    for (int64_t r = 0; r < 2; ++r) {
        double covered = 0, uncovered = 1;  // by every choice; by every choice but its last block
        for (int64_t i = 0; i < 285; ++i) {
            double sum = 0, least = HUGE_VAL, best_left = 0;
            const int64_t local = blocks(i) - 1;
            int64_t count = 0;
            for (int64_t b = 0; b <= local; ++b) {
                const bool in = got(i, r, b) > -INFINITY;
                ASSERT_TRUE(in || b != local) << "the local block is always in";
                if (in) {
                    ++count;
                    sum += mass(i, r, b);
                    if (b != local) least = std::min(least, double{mass(i, r, b)});
                } else {
                    best_left = std::max(best_left, double{mass(i, r, b)});
                }
            }
            ASSERT_GE(least, best_left) << i;
            if (count > 1) covered = std::max(covered, sum - least);
            if (count <= local) uncovered = std::min(uncovered, sum);
            kept += static_cast<double>(count);
            budget += static_cast<double>(std::min<int64_t>(4, local + 1));
        }
        EXPECT_LE(covered, uncovered + votes_bound(1)) << "one p lies between them";
    }
    // All queries are in the sample. One choice of each group may fall on the other side of p, for
    // the rounding of its mass.
    EXPECT_NEAR(kept, budget, 2);
}

/// Rows that see fewer blocks than the budget leave the others no more than theirs.
TEST_F(TopP, QueriesThatCountKeepTheBudget) {
    for (int64_t i = 64; i < 210; ++i) counted_.push_back(i);  // beyond 4 blocks
    const SelectionRule rule{.top_k = 4};
    const Tensor<float, 3> got = scores("top-p", 0, rule);
    expect_budget_kept(got, 4);
}

TEST_F(TopP, SpendsUnevenly) {
    EXPECT_EQ(make_selector("top-p")->adjust({.top_k = 4}, 0).top_k, kUneven);
    expect_chunks_do_not_matter("top-p");
}

}  // namespace
}  // namespace msa::test
