// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/random.h"
#include "core/tolerance.h"

namespace msa {
namespace {

constexpr int64_t kDraws = 200000;

TEST(Mix, IsSplitMix64) {
    // The published outputs of the generator with seeds 0 and 1234567; its state grows by the
    // golden ratio at each step.
    constexpr uint64_t step = 0x9e3779b97f4a7c15U;
    constexpr uint64_t from_zero[] = {0xe220a8397b1dcdafU, 0x6e789e6aa1b965f4U,
                                      0x06c45d188009454fU};
    constexpr uint64_t from_seed[] = {6457827717110365317U, 3203168211198807973U,
                                      9817491932198370423U, 4593380528125082431U,
                                      16408922859458223821U};
    for (uint64_t n = 0; n < 3; ++n) EXPECT_EQ(mix(n * step), from_zero[n]) << n;
    for (uint64_t n = 0; n < 5; ++n) EXPECT_EQ(mix(1234567 + n * step), from_seed[n]) << n;
    static_assert(mix(0) == 0xe220a8397b1dcdafU);
}

TEST(Mix, OfAListDependsOnEveryEntryAndTheirOrder) {
    std::set<uint64_t> seen;
    for (uint64_t a = 0; a < 20; ++a)
        for (int64_t b = -10; b < 10; ++b) {
            seen.insert(mix(a, b));
            for (int64_t c = 0; c < 20; ++c) {
                seen.insert(mix(a, b, c));
                for (int64_t d = 0; d < 5; ++d) seen.insert(mix(a, b, c, d));
            }
        }
    EXPECT_EQ(seen.size(), 20U * 20 * (1 + 20 * (1 + 5)));
    // mix(a, b) is SplitMix64 of SplitMix64(a) xor b; results were made with it.
    EXPECT_EQ(mix(1, 2), 0xbcd9dbb49673066bU);
    EXPECT_EQ(mix(1, 2, 3), 0x970864d014d5e8efU);
    EXPECT_EQ(mix(7, -1), 0xa9a96b699dc41760U);
}

TEST(RandomUniform, CoversZeroToOneWithoutOne) {
    EXPECT_EQ(random_uniform(0), 0);
    EXPECT_EQ(random_uniform(~uint64_t{0}), 1 - 0x1p-53);
    EXPECT_EQ(random_uniform(uint64_t{1} << 63U), 0.5);
    EXPECT_EQ(random_uniform(0x7ff), 0);  // 53 bits count
    EXPECT_EQ(random_uniform(0x800), 0x1p-53);
}

TEST(RandomUniform, MomentsAndBins) {
    double sum = 0, squares = 0, neighbours = 0, bins[10] = {};
    for (int64_t n = 0; n < kDraws; ++n) {
        const double u = random_uniform(mix(3, n)), next = random_uniform(mix(3, n + 1));
        sum += u;
        squares += u * u;
        neighbours += (u - 0.5) * (next - 0.5);
        ++bins[static_cast<int>(u * 10)];
    }
    EXPECT_NEAR(sum / kDraws, 1.0 / 2, sampling_bound(1.0 / 12, kDraws));
    EXPECT_NEAR(squares / kDraws, 1.0 / 3, sampling_bound(4.0 / 45, kDraws));
    EXPECT_NEAR(neighbours / kDraws, 0, sampling_bound(1.0 / 144, kDraws));
    for (double count : bins) EXPECT_NEAR(count / kDraws, 0.1, sampling_bound(0.1 * 0.9, kDraws));
}

TEST(RandomNormal, KnownValues) {
    EXPECT_EQ(random_normal(0), 0);  // radius sqrt(-2 ln(1 - 0))
    // The largest uniform: the radius is sqrt(2 * 53 ln 2).
    const double largest = std::sqrt(106 * std::log(2));
    EXPECT_LE(std::fabs(random_normal(~uint64_t{0})), largest);
    // Bits of 1/2: sqrt(2 ln 2) times the cosine of the uniform of the mixed bits.
    const uint64_t half = uint64_t{1} << 63U;
    const double turn = 2 * std::acos(-1) * static_cast<double>(mix(half) >> 11U) / 0x1p53;
    EXPECT_DOUBLE_EQ(random_normal(half), std::sqrt(2 * std::log(2)) * std::cos(turn));
}

TEST(RandomNormal, MomentsAndTails) {
    double sums[5] = {}, neighbours = 0, below[4] = {};
    const double at[4] = {-2, -0.5, 0, 1};
    for (int64_t n = 0; n < kDraws; ++n) {
        const double x = random_normal(mix(5, n));
        ASSERT_TRUE(std::isfinite(x));
        double power = 1;
        for (double& sum : sums) {
            sum += power;
            power *= x;
        }
        neighbours += x * random_normal(mix(5, n + 1));
        for (int c = 0; c < 4; ++c) below[c] += x < at[c];
    }
    // Moments 0, 1, 0, 3; the variances of x, x^2, x^3, x^4 are 1, 2, 15, 96.
    EXPECT_NEAR(sums[1] / kDraws, 0, sampling_bound(1, kDraws));
    EXPECT_NEAR(sums[2] / kDraws, 1, sampling_bound(2, kDraws));
    EXPECT_NEAR(sums[3] / kDraws, 0, sampling_bound(15, kDraws));
    EXPECT_NEAR(sums[4] / kDraws, 3, sampling_bound(96, kDraws));
    EXPECT_NEAR(neighbours / kDraws, 0, sampling_bound(1, kDraws));
    for (int c = 0; c < 4; ++c) {
        const double share = std::erfc(-at[c] / std::sqrt(2)) / 2;
        EXPECT_NEAR(below[c] / kDraws, share, sampling_bound(share * (1 - share), kDraws));
    }
}

}  // namespace
}  // namespace msa
