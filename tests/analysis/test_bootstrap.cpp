// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "analysis/bootstrap.h"

namespace msa::test {
namespace {

using analysis::bootstrap_draws, analysis::with_interval, analysis::Estimate;

Estimate interval_of_mean(const std::vector<double>& values,
                          const std::vector<int64_t>& sequences) {
    const Tensor<int32_t, 2> times = bootstrap_draws(sequences, 1000, 7);
    std::vector<double> means;
    for (int64_t n = 0; n < times.extent(0); ++n) {
        double sum = 0, count = 0;
        for (size_t b = 0; b < values.size(); ++b) {
            const double here = times(n, static_cast<int64_t>(b));
            sum += here * values[b];
            count += here;
        }
        means.push_back(sum / count);
    }
    return with_interval(
        std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()),
        means);
}

TEST(Bootstrap, DrawsAsManyBlocksAsEachDrawnSequenceHas) {
    const std::vector<int64_t> sequences{4, 4, 4, 9, 9, 9, 9, 9, 0, 1, 2, 3};
    const Tensor<int32_t, 2> times = bootstrap_draws(sequences, 400, 3);
    std::vector<int64_t> totals;
    for (int64_t n = 0; n < times.extent(0); ++n) {
        int64_t first = 0, second = 0, others = 0;
        for (int64_t b = 0; b < 12; ++b) (b < 3 ? first : b < 8 ? second : others) += times(n, b);
        EXPECT_EQ(first % 3, 0);
        EXPECT_EQ(second % 5, 0);
        EXPECT_EQ(first / 3 + second / 5 + others, 6);
        totals.push_back(first / 3);
    }
    for (int64_t often : {0, 1, 2})
        EXPECT_GT(std::count(totals.begin(), totals.end(), often), 0) << often;
}

TEST(Bootstrap, IsAFunctionOfTheSeed) {
    const std::vector<int64_t> sequences(20, 0);
    const Tensor<int32_t, 2> a = bootstrap_draws(sequences, 5, 1),
                             b = bootstrap_draws(sequences, 5, 1),
                             c = bootstrap_draws(sequences, 5, 2);
    EXPECT_TRUE(std::equal(a.data(), a.data() + a.size(), b.data()));
    EXPECT_FALSE(std::equal(a.data(), a.data() + a.size(), c.data()));
}

// The mean of 100 zeros and ones, half each, is binomial: its points are 0.40 and 0.60. The points
// of 1000 draws are off by sqrt(0.025 0.975 / 1000) / density = 0.0042, and steps are 0.01 wide:
// 0.03 is more than four of the first and one of the second.
TEST(Bootstrap, IntervalOfAMeanIsTheBinomialOne) {
    std::vector<double> values(100, 0.0);
    for (size_t b = 0; b < values.size(); b += 2) values[b] = 1;
    const Estimate mean = interval_of_mean(values, std::vector<int64_t>(100, 0));
    EXPECT_DOUBLE_EQ(mean.value, 0.5);
    EXPECT_NEAR(mean.low, 0.4, 0.03);
    EXPECT_NEAR(mean.high, 0.6, 0.03);
}

// Six sequences, each all alike within, half of them of zeros: one draw in 64 has these alone, and
// one in 11 has at most one of the others.
TEST(Bootstrap, SequencesAreDrawnBeforeBlocks) {
    std::vector<double> values;
    std::vector<int64_t> sequences;
    for (int64_t b = 0; b < 60; ++b) {
        values.push_back(b < 30 ? 0 : 1);
        sequences.push_back(b / 10);
    }
    const Estimate mean = interval_of_mean(values, sequences);
    EXPECT_NEAR(mean.low, 1.0 / 6, 1e-12);
    EXPECT_NEAR(mean.high, 5.0 / 6, 1e-12);
}

TEST(Bootstrap, OfFewerThanSixSequencesTheBlocksAreDrawnAlone) {
    std::vector<int64_t> five(30), six(30);
    for (int64_t b = 0; b < 30; ++b) {
        five[static_cast<size_t>(b)] = b / 6;
        six[static_cast<size_t>(b)] = b / 5;
    }
    const auto same = [](const std::vector<int64_t>& sequences) {
        const Tensor<int32_t, 2> times = bootstrap_draws(sequences, 20, 1),
                                 of_one = bootstrap_draws(std::vector<int64_t>(30, 0), 20, 1);
        return std::equal(times.data(), times.data() + times.size(), of_one.data());
    };
    EXPECT_TRUE(same(five));
    EXPECT_FALSE(same(six));
}

TEST(Bootstrap, PointsAreLinearBetweenNeighbours) {
    std::vector<double> draws(1001);
    std::iota(draws.rbegin(), draws.rend(), 0.0);
    const Estimate estimate = with_interval(3, draws);
    EXPECT_DOUBLE_EQ(estimate.low, 25);
    EXPECT_DOUBLE_EQ(estimate.high, 975);
    EXPECT_DOUBLE_EQ(with_interval(0, {0.0, 1.0}).low, 0.025);
    draws.push_back(std::numeric_limits<double>::quiet_NaN());
    EXPECT_TRUE(std::isnan(with_interval(3, draws).low));
    EXPECT_TRUE(std::isnan(with_interval(3, {}).high));
}

}  // namespace
}  // namespace msa::test
