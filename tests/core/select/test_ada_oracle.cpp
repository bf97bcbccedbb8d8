// SPDX-License-Identifier: MIT
#include <algorithm>

#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class AdaOracle : public Policy {};

/// The budget of all groups is spent, a fifth of it by each, and on nothing that has less mass than
/// what is left out.
TEST_F(AdaOracle, SharesTheBudgetAmongTheGroups) {
    const Tensor<float, 3> mass = mass_of(p_, q_.view());
    int64_t uneven = 0;
    for (const int64_t top_k : {4, 10}) {
        const Tensor<float, 3> got = scores("ada-oracle", 0, {.top_k = top_k});
        for (int64_t i = 0; i < 285; ++i) {
            const int64_t local = blocks(i) - 1, own = top_k / 5;
            int64_t spent = 0;
            float least_taken = 1, most_left = 0;
            for (int64_t r = 0; r < 2; ++r) {
                std::vector<float> sorted(&mass(i, r, 0), &mass(i, r, 0) + local);
                std::sort(sorted.rbegin(), sorted.rend());
                int64_t kept = 1;  // the local block
                for (int64_t b = 0; b < local; ++b) {
                    const bool taken = got(i, r, b) > -INFINITY;
                    ASSERT_TRUE(!taken || got(i, r, b) == mass(i, r, b));
                    kept += taken ? 1 : 0;
                    const bool of_group =
                        own > 1 && mass(i, r, b) >= sorted[static_cast<size_t>(own - 2)];
                    ASSERT_TRUE(taken || !of_group) << i << ", " << r << ", " << b;
                    if (taken && !of_group) least_taken = std::min(least_taken, mass(i, r, b));
                    if (!taken) most_left = std::max(most_left, mass(i, r, b));
                }
                EXPECT_GE(kept, std::min(own, blocks(i)));
                uneven += kept != std::min(top_k, blocks(i)) ? 1 : 0;
                spent += kept;
            }
            ASSERT_EQ(spent, 2 * std::min(top_k, blocks(i))) << i;
            ASSERT_GE(least_taken, most_left) << i;
        }
    }
    EXPECT_GT(uneven, 50);
    EXPECT_EQ(make_selector("ada-oracle")->adjust({.top_k = 4}, 0).top_k, kUneven);
}

/// A group that looks at nothing but its newest tokens still has two blocks of ten.
TEST_F(AdaOracle, LeavesEveryGroupAFifth) {
    p_.block_size = 8;
    for (int64_t i = 0; i < 285; ++i) {
        std::fill_n(&k_(i, 0, 0), 16, 0.0F);
        k_(i, 0, 0) = static_cast<float>(position(i));
        for (int64_t h = 0; h < 2; ++h) q_(i, h, 0) = 8;
    }
    const Tensor<float, 3> got = scores("ada-oracle", 0, {.top_k = 10});
    const auto kept = [&](int64_t r) {
        int64_t count = 0;
        for (int64_t b = 0; b < blocks(207); ++b) count += got(207, r, b) > -INFINITY ? 1 : 0;
        return count;
    };
    EXPECT_EQ(kept(0), 2);
    EXPECT_EQ(kept(1), 18);
}

TEST_F(AdaOracle, ChunksDoNotMatter) { expect_chunks_do_not_matter("ada-oracle"); }

}  // namespace
}  // namespace msa::test
