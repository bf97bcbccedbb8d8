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

}  // namespace
}  // namespace msa::test
