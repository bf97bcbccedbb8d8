// SPDX-License-Identifier: MIT
#include "tests/core/select/lines.h"

namespace msa::test {
namespace {

class FlexPrefill : public LinesPolicy {
protected:
    using LinesPolicy::LinesPolicy;

    /// softmax(mean(q) . mean(k) / sqrt(dh)) of query block y over key blocks 0..y, mean over
    /// heads.
    std::vector<double> estimate(int64_t token, int64_t r, int64_t y) const {
        std::vector<double> sums(static_cast<size_t>(y + 1), 0.0);
        for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
            std::vector<double> weights;
            double all = 0;
            const std::vector<double> query = mean_query(token, h, y);
            for (int64_t b = 0; b <= y; ++b) {
                const std::vector<double> key = mean_key(token, r, b);
                double dot = 0;
                for (size_t d = 0; d < 16; ++d) dot += query[d] * key[d];
                weights.push_back(std::exp(dot / 4));
                all += weights.back();
            }
            for (size_t b = 0; b < weights.size(); ++b) sums[b] += weights[b] / all / 2;
        }
        return sums;
    }

    /// Jensen-Shannon distance of the estimate from the attention of the last query block.
    double distance(int64_t token, int64_t r) const {
        const int64_t last = (length(token) - 1) / 16;
        const std::vector<double> p = estimate(token, r, last);
        std::vector<double> q(p.size(), 0.0);
        const auto queries = static_cast<double>(length(token) - 16 * last);
        for (int64_t i = 16 * last; i < length(token); ++i)
            for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
                const std::vector<double> weights = attention(start(token) + i, h);
                for (size_t j = 0; j < weights.size(); ++j) q[j / 16] += weights[j] / 2 / queries;
            }
        double sum = 0;
        for (size_t b = 0; b < p.size(); ++b) {
            sum += p[b] / 2 * std::log(2 * p[b] / (p[b] + q[b]));
            sum += q[b] / 2 * std::log(2 * q[b] / (p[b] + q[b]));
        }
        return std::sqrt(sum);
    }

    const SelectionRule rule_{.top_k = 4};  // first and local block forced
};

TEST_F(FlexPrefill, ElsewhereIsVerticalSlashWithinTheBudget) {
    const Tensor<float, 3> got = scores("flexprefill", 0, rule_);
    for (int64_t i : {209, 284, 150, 90, 230}) {
        for (int64_t r = 0; r < 2; ++r) {
            ASSERT_GT(distance(i, r), 0.1) << "sharp attention is not predicted by means";
            int64_t kept = 0;
            double least = HUGE_VAL, most = 0;
            for (int64_t b = 1; b + 1 < blocks(i); ++b) {
                const double want = lines(i, r, b, 16, length(i));
                if (got(i, r, b) > -INFINITY) {
                    ASSERT_NEAR(got(i, r, b), want, votes_bound(64));
                    least = std::min(least, want);
                    ++kept;
                } else {
                    most = std::max(most, want);
                }
            }
            EXPECT_EQ(kept, std::min<int64_t>(2, std::max<int64_t>(0, blocks(i) - 2))) << i;
            EXPECT_GE(least, most - votes_bound(64));
        }
    }
}

class FlatFlexPrefill : public FlexPrefill {
protected:
    // Full blocks, many of them: means cannot tell how much of the last one is seen.
    FlatFlexPrefill() : FlexPrefill(0.05F, 208) {}
};

TEST_F(FlatFlexPrefill, FlatAttentionTakesTheBestCellsOfTheWholeMap) {
    const Tensor<float, 3> got = scores("flexprefill", 0, rule_);
    const int64_t first = 0;
    for (int64_t r = 0; r < 2; ++r) {
        ASSERT_LT(distance(first, r), 0.1);
        int64_t kept = 0, budget = 0;
        double least = HUGE_VAL, most = 0;
        for (int64_t y = 0; 16 * y < length(first); ++y) {
            const std::vector<double> want = estimate(first, r, y);
            budget += std::max<int64_t>(0, std::min<int64_t>(4, y + 1) - 2);
            for (int64_t b = 1; b < y; ++b) {
                const float score = got(first + 16 * y, r, b);
                const int64_t last = std::min(first + 16 * y + 15, first + length(first) - 1);
                ASSERT_EQ(score, got(last, r, b)) << "one choice for the query block";
                const double cell = want[static_cast<size_t>(b)];
                if (score > -INFINITY) {
                    ASSERT_NEAR(score, cell, votes_bound(1));
                    least = std::min(least, cell);
                    ++kept;
                } else {
                    most = std::max(most, cell);
                }
            }
        }
        EXPECT_EQ(kept, budget) << "the mean query keeps the budget";
        EXPECT_GE(least, most - votes_bound(1));
    }
}

TEST_F(FlatFlexPrefill, QueriesThatCountKeepTheBudget) {
    for (int64_t i = 64; i < 208; i += 5) counted_.push_back(i);  // beyond 4 blocks
    const Tensor<float, 3> got = scores("flexprefill", 0, rule_);
    for (int64_t r = 0; r < 2; ++r) {
        ASSERT_LT(distance(0, r), 0.1);
        double kept = 0;
        for (int64_t i : counted_)
            for (int64_t b = 0; b < blocks(i); ++b)
                kept += got(i, r, b) > -INFINITY || b == 0 || b + 1 == blocks(i);
        const auto budget = 4 * static_cast<double>(counted_.size());
        EXPECT_LE(kept, budget);
        EXPECT_GE(kept, budget - 4);
    }
}

TEST_F(FlexPrefill, SpendsUnevenlyAndChunksDoNotMatter) {
    EXPECT_EQ(make_selector("flexprefill")->adjust(rule_, 0).top_k, kUneven);
    EXPECT_TRUE(make_selector("flexprefill")->needs().phases == Phases::prefill);
    expect_chunks_do_not_matter("flexprefill");
}

}  // namespace
}  // namespace msa::test
