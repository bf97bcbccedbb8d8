// SPDX-License-Identifier: MIT
#include <algorithm>

#include "tests/core/select/budget.h"

namespace msa::test {
namespace {

class XAttention : public BudgetTest {
protected:
    /// The estimate of query block y of the token's sequence: [key block], with the tiles' sums of
    /// q[a S + S - 1 - t] . k[c S + t], queries and keys behind the end being 0.
    std::vector<double> row(int64_t token, int64_t r, int64_t stride) const {
        const int64_t y = position(token) / 16, per_block = 16 / stride;
        const int64_t tiles = (length(token) + stride - 1) / stride;
        std::vector<double> sums(static_cast<size_t>(y + 1), 0.0);
        double all = 0;
        for (int64_t h = 2 * r; h < 2 * r + 2; ++h)
            for (int64_t a = y * per_block; a < std::min((y + 1) * per_block, tiles); ++a) {
                std::vector<double> weights;
                double total = 0;
                for (int64_t c = 0; c <= a; ++c) {
                    weights.push_back(std::exp(antidiagonals(token, h, a, c, stride) / 4 /
                                               static_cast<double>(stride)));
                    total += weights.back();
                }
                for (int64_t c = 0; c <= a; ++c)
                    sums[static_cast<size_t>(c / per_block)] +=
                        weights[static_cast<size_t>(c)] / total;
                all += 1;
            }
        for (double& sum : sums) sum /= all;
        return sums;
    }

    /// The blocks that the source's find_blocks_chunked keeps: the first and the own one, then by
    /// estimate while those before cover less than the threshold. False where rounding decides.
    static bool kept(const std::vector<double>& estimate, int64_t b, double threshold, double bound,
                     bool& keep) {
        const auto own = std::ssize(estimate) - 1;
        if (keep = b == 0 || b == own; keep) return true;
        double before = estimate[0] + (own > 0 ? estimate.back() : 0);
        for (int64_t other = 1; other < own; ++other)
            if (estimate[static_cast<size_t>(other)] > estimate[static_cast<size_t>(b)])
                before += estimate[static_cast<size_t>(other)];
        keep = before < threshold;
        return std::fabs(before - threshold) > bound;
    }

private:
    double antidiagonals(int64_t token, int64_t h, int64_t a, int64_t c, int64_t stride) const {
        double sum = 0;
        for (int64_t t = 0; t < stride; ++t) {
            const int64_t i = a * stride + stride - 1 - t, j = c * stride + t;
            if (i >= length(token) || j >= length(token)) continue;
            for (int64_t d = 0; d < 16; ++d)
                sum += double{q_(start(token) + i, h, d)} * double{k_(start(token) + j, h / 2, d)};
        }
        return sum;
    }
};

TEST_F(XAttention, CoversTheThreshold) {
    for (const auto& [name, stride, threshold] :
         {std::tuple{"xattention:threshold=0.5", 16, 0.5},
          {"xattention:stride=4:threshold=0.75", 4, 0.75},
          {"xattention:stride=12:threshold=0.6", 4, 0.6}}) {  // a block is a number of tiles
        const Tensor<float, 3> got = scores(name);
        const double bound = 16 * votes_bound(1);  // blocks that come before
        int64_t left = 0, checked = 0;
        for (int64_t i = 0; i < 285; ++i)
            for (int64_t r = 0; r < 2; ++r) {
                const std::vector<double> want = row(i, r, stride);
                for (int64_t b = 0; b < blocks(i); ++b) {
                    bool keep = false;
                    if (!kept(want, b, threshold, bound, keep)) continue;
                    ++checked;
                    left += keep ? 0 : 1;
                    ASSERT_EQ(keep, got(i, r, b) > -INFINITY) << name << ", " << i << ", " << b;
                    if (keep) {
                        ASSERT_NEAR(got(i, r, b), want[static_cast<size_t>(b)], bound) << i;
                    }
                }
            }
        EXPECT_GT(left, 500) << name;
        EXPECT_GT(checked, 3000) << name;
    }
}

/// A whole query block has one choice, so that the budget is kept to one block of one of them.
TEST_F(XAttention, QueriesThatCountKeepTheBudget) {
    for (int64_t i = 72; i < 210; ++i) counted_.push_back(i);  // beyond 4 blocks
    const Tensor<float, 3> got = scores("xattention");
    expect_budget_kept(got, 15);
}

TEST_F(XAttention, ForcesTheFirstAndTheLocalBlockAndSpendsUnevenly) {
    EXPECT_EQ(make_selector("xattention")->adjust({.top_k = 4}, 0),
              (SelectionRule{.top_k = kUneven, .forced_local = 1, .forced_first = 1}));
    EXPECT_TRUE(make_selector("xattention")->needs().phases == Phases::prefill);
    expect_chunks_do_not_matter("xattention");
}

}  // namespace
}  // namespace msa::test
