// SPDX-License-Identifier: MIT
#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class Quest : public Policy {};

TEST_F(Quest, BoundsTheProductsOfThePage) {
    const auto want = [&](int64_t i, int64_t r, int64_t b) {
        double sum = 0;
        for (int64_t h = 2 * r; h < 2 * r + 2; ++h)
            for (int64_t d = 0; d < 16; ++d) {
                double top = -HUGE_VAL;  // over the box of the page's keys, at its corners
                for (int64_t j = 16 * b; j <= std::min(16 * b + 15, position(i)); ++j)
                    top = std::max(top, double{q_(i, h, d)} * double{k_(start(i) + j, r, d)});
                sum += top;
            }
        return sum;
    };
    // Two products of width dh, of vectors no longer than q and the longest key's channels.
    const double bound = gamma(2 + 2 * 16 + 3) * 2 * largest_norm<3>(q_) * 16 * largest_norm<3>(k_);
    expect_scores(scores("quest"), bound, want);
}

TEST_F(Quest, IsNoLessThanAnyProduct) {
    const Tensor<float, 3> got = scores("quest");
    for (int64_t i = 0; i < 285; i += 7)
        for (int64_t r = 0; r < 2; ++r)
            for (int64_t j = 0; j <= position(i); ++j) {
                double dot = 0;
                for (int64_t h = 2 * r; h < 2 * r + 2; ++h)
                    for (int64_t d = 0; d < 16; ++d)
                        dot += double{q_(i, h, d)} * double{k_(start(i) + j, r, d)};
                ASSERT_GE(got(i, r, j / 16), dot - 1e-3) << i << ", " << j;
            }
}

/// Blocks of 64 tokens: the largest bound of their four pages, as far as they are seen.
TEST_F(Quest, OfPagesIsTheLargestOfThem) {
    const Tensor<float, 3> pages = scores("quest");
    p_.block_size = 64;
    const Tensor<float, 3> got = scores("quest-pages");
    for (int64_t i = 0; i < 285; ++i)
        for (int64_t r = 0; r < 2; ++r)
            for (int64_t b = 0; b < blocks(i); ++b) {
                float want = -INFINITY;
                for (int64_t page = 4 * b; page <= std::min(4 * b + 3, position(i) / 16); ++page)
                    want = std::max(want, pages(i, r, page));
                ASSERT_EQ(got(i, r, b), want) << i << ", " << b;
            }
    EXPECT_EQ(make_selector("lserve")->name(), "quest-pages");
}

TEST_F(Quest, OfPagesOfBlocksThatAreNoMultipleOf16) {
    p_.block_size = 8;
    const Tensor<float, 3> want = scores("quest"), got = scores("quest-pages");
    for (int64_t i = 0; i < 285; ++i)
        for (int64_t b = 0; b < blocks(i); ++b) ASSERT_EQ(got(i, 1, b), want(i, 1, b)) << i;
}

}  // namespace
}  // namespace msa::test
