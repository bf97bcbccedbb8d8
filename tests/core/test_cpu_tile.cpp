// SPDX-License-Identifier: MIT
// The building blocks of the cpu backend against their contracts in core/cpu/tile.h.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "core/cpu/tile.h"

namespace msa::cpu {
namespace {

const float kNan = std::nanf("");

TEST(CpuTile, Exp2IsWithinTwoUlp) {
    for (int n = 0; n <= 200000; ++n) {
        const float x = -125.0F + static_cast<float>(n) * 0x1p-10F;  // to 70: ulp is 2^-23 of 2^x
        const double exact = std::exp2(double{x});
        ASSERT_LE(std::fabs(double{exp2(x)} - exact), 2 * 0x1p-23 * exact) << x;
    }
}

TEST(CpuTile, Exp2AtTheEnds) {
    EXPECT_EQ(exp2(-kInfinity), 0.0F);
    EXPECT_EQ(exp2(-126.0F), 0.0F);
    EXPECT_EQ(exp2(0.0F), 1.0F);
    EXPECT_TRUE(std::isnan(exp2(kNan)));
}

TEST(CpuTile, CapIsWithinSixteenRoundoffsOfTheCap) {
    constexpr float kCap = 30;
    for (int n = -20000; n <= 20000; ++n) {
        const float x = static_cast<float>(n) * 0x1p-10F;  // to 20, where tanh is 1
        std::vector<float> row(static_cast<size_t>(2 * kLanes), x);
        cap_row(row.data(), 1, kCap);
        ASSERT_LE(std::fabs(double{row[0]} - double{kCap} * std::tanh(double{x})),
                  16 * 0x1p-24 * double{kCap})
            << x;
        ASSERT_EQ(row[1], x);  // behind the row
    }
    std::vector<float> ends(static_cast<size_t>(2 * kLanes), kNan);
    ends[0] = -kInfinity;
    ends[1] = kInfinity;
    ends[2] = 0;
    cap_row(ends.data(), kLanes, kCap);
    EXPECT_EQ(ends[0], -kCap);
    EXPECT_EQ(ends[1], kCap);
    EXPECT_EQ(ends[2], 0.0F);
    EXPECT_TRUE(std::isnan(ends[3]));
    cap_row(ends.data(), kLanes, 0);
    EXPECT_EQ(ends[1], kCap);
}

TEST(CpuTile, MaximumOfAnyCountKnowsNanEverywhere) {
    for (int64_t count = 0; count <= 3 * kLanes; ++count) {
        std::vector<float> values(static_cast<size_t>(4 * kLanes), kNan);  // behind the row: unread
        for (int64_t j = 0; j < count; ++j)
            values[static_cast<size_t>(j)] = static_cast<float>(-j % 7) - 3;
        EXPECT_EQ(max_or_nan(values.data(), count), count == 0 ? -kInfinity : -3.0F) << count;
        for (int64_t j = 0; j < count; ++j) {
            std::vector<float> poisoned = values;
            poisoned[static_cast<size_t>(j)] = kNan;
            EXPECT_TRUE(std::isnan(max_or_nan(poisoned.data(), count))) << count << ' ' << j;
        }
    }
}

TEST(CpuTile, SoftmaxStepsSumWhatRisesAndKeepWhatLiesBehind) {
    // Steps that rise by 7.5, 20, 140 and fall again: the lazy reference point must follow.
    OnlineSum state;
    double exact = 0;
    const std::array<float, 6> base{0, 7.5F, 27.5F, 167.5F, 160, -500};
    for (float b : base) {
        std::vector<float> logits(static_cast<size_t>(3 * kLanes), 9);
        const int64_t count = kLanes + 3;
        for (int64_t j = 0; j < count; ++j) {
            logits[static_cast<size_t>(j)] = b - static_cast<float>(j);
            exact += std::exp2(double{b} - static_cast<double>(j) - 167.5);
        }
        const SoftmaxStep step = softmax_step(logits.data(), count, state);
        EXPECT_LE(b, state.reference + 8);
        EXPECT_NEAR(logits[1], std::exp2(double{b} - 1 - double{state.reference}), 1e-4);
        EXPECT_GE(step.sum, logits[0]);
        for (size_t j = static_cast<size_t>(count); j < logits.size(); ++j)
            EXPECT_EQ(logits[j], 9.0F);
    }
    const double lse = std::log(2.0) * (167.5 + std::log2(exact));
    EXPECT_NEAR(log_sum(state), lse, lse * 0x1p-23);
    EXPECT_EQ(log_sum(OnlineSum{}), -kInfinity);
}

TEST(CpuTile, ManySmallStepsBesideALargeOneAreNotLost) {
    OnlineSum state;
    std::vector<float> logits(static_cast<size_t>(kLanes), 0);
    softmax_step(logits.data(), 1, state);
    for (int n = 0; n < (1 << 14); ++n) {
        logits[0] = -25;  // each below half an ulp of the sum in float
        softmax_step(logits.data(), 1, state);
    }
    EXPECT_NEAR(state.sum, 1 + 0x1p-11, 0x1p-30);
}

TEST(CpuTile, InvisibleValuesMayBeNan) {
    // Rows that see 2 and 5 keys; the fifth value is NaN, and so are both rows' weights behind.
    constexpr int64_t kKeys = 5, kDims = 3;
    std::vector<float> rows(kKeys * kDims, 1);
    rows[4 * kDims] = kNan;
    std::vector<float> panels(static_cast<size_t>(panel_floats(kKeys, kDims)));
    const Panels values = pack_values({rows.data(), kDims, 0, kDims}, 0, 0, kKeys, panels.data());
    std::vector<float> p(16, 1), sums(static_cast<size_t>(2 * padded(kDims)), 10);
    const std::array<int64_t, 2> visible{2, 5};
    const std::array<float, 2> factor{0.5F, 0};
    add_values(p.data(), 8, 2, values, visible.data(), factor.data(), sums.data(), padded(kDims));
    EXPECT_EQ(sums[0], 7.0F);
    EXPECT_EQ(sums[1], 7.0F);
    EXPECT_TRUE(std::isnan(sums[static_cast<size_t>(padded(kDims))]));
    EXPECT_EQ(sums[static_cast<size_t>(padded(kDims)) + 1], 5.0F);
}

}  // namespace
}  // namespace msa::cpu
