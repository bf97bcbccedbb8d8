// SPDX-License-Identifier: MIT
// Against values written out by hand, and against every code of the small formats.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/number/e4m3.h"
#include "core/number/half.h"
#include "core/number/quantize.h"
#include "tests/support/random.h"

namespace msa {
namespace {

using Format = NumberFormat;
using enum ScaleUnit;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr NumberFormat kFormats[] = {Format::float32,     Format::bfloat16,    Format::float16,
                                     Format::float8_e4m3, Format::float8_e5m2, Format::int8,
                                     Format::int4,        Format::mxfp4};

/// One head of one token.
std::vector<float> stored(const Precision& precision, std::vector<float> values) {
    store_as(precision, {values.data(), {1, 1, std::ssize(values)}});
    return values;
}

/// The finite values of a format from the least to the largest, each written out by its own rule.
std::vector<float> values_of(NumberFormat format) {
    std::vector<float> values;
    switch (format) {
        case Format::float8_e4m3:
            for (int bits = 0; bits < 256; ++bits) {
                e4m3 x;
                x.bits = static_cast<uint8_t>(bits);
                values.push_back(static_cast<float>(x));
            }
            break;
        case Format::float8_e5m2:  // the upper half of binary16
            for (int bits = 0; bits < 256; ++bits)
                values.push_back(
                    static_cast<float>(std::bit_cast<f16>(static_cast<uint16_t>(bits << 8))));
            break;
        case Format::mxfp4:
            for (float value : {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F})
                values.insert(values.end(), {value, -value});
            break;
        case Format::int8:
            for (int n = -127; n <= 127; ++n) values.push_back(static_cast<float>(n));
            break;
        case Format::int4:
            for (int n = -7; n <= 7; ++n) values.push_back(static_cast<float>(n));
            break;
        default: break;
    }
    std::erase_if(values, [](float value) { return !std::isfinite(value); });
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    return values;
}

/// A value as the format stores it where the scale is 1: the largest value is beside it.
float at_scale_one(NumberFormat format, float value) {
    const ScaleUnit unit = format == Format::mxfp4                                          ? block
                           : format == Format::float8_e4m3 || format == Format::float8_e5m2 ? none
                                                                                            : token;
    return stored({format, unit}, {value, largest_of(format)})[0];
}

TEST(Quantize, EveryValueOfASmallFormatStaysAndMiddlesGoToTheEven) {
    for (NumberFormat format :
         {Format::float8_e4m3, Format::float8_e5m2, Format::int8, Format::int4, Format::mxfp4}) {
        const std::vector<float> all = values_of(format);
        EXPECT_EQ(all.size(),
                  format == Format::float8_e4m3 ? 253U  // 256 less two of NaN and one of two zeros
                  : format == Format::float8_e5m2 ? 247U  // less two of infinity and six of NaN
                  : format == Format::mxfp4       ? 15U
                  : format == Format::int8        ? 255U
                                                  : 15U);
        EXPECT_EQ(all.back(), largest_of(format));
        const auto zero = std::find(all.begin(), all.end(), 0.0F) - all.begin();
        for (size_t n = 0; n < all.size(); ++n) EXPECT_EQ(at_scale_one(format, all[n]), all[n]);
        // Codes of a magnitude count from zero; the even one has the even code.
        for (size_t n = static_cast<size_t>(zero); n + 1 < all.size(); ++n) {
            const float low = all[n], high = all[n + 1], middle = (low + high) / 2;
            const bool low_is_even = (n - static_cast<size_t>(zero)) % 2 == 0;
            const float even = low_is_even ? low : high;
            EXPECT_EQ(at_scale_one(format, middle), even) << to_string(format) << ' ' << middle;
            EXPECT_EQ(at_scale_one(format, -middle), -even) << to_string(format) << ' ' << middle;
            EXPECT_EQ(at_scale_one(format, std::nextafter(middle, low)), low) << middle;
            EXPECT_EQ(at_scale_one(format, std::nextafter(middle, high)), high) << middle;
        }
    }
}

TEST(Quantize, ScalesByHand) {
    // int4: the scale is 14 / 7 = 2; 3 lies between 2 and 4 and goes to the even multiple, 2 * 2.
    EXPECT_EQ(stored({Format::int4, token}, {14, 3, -5, 0.9F, 6.9F}),
              (std::vector<float>{14, 4, -4, 0, 6}));
    // int8: 254 / 127 = 2.
    EXPECT_EQ(stored({Format::int8, tensor}, {-254, 3.1F, 253}),
              (std::vector<float>{-254, 4, 252}));
    // e4m3: 896 / 448 = 2, and 2 * 0x1p-9 is the smallest magnitude.
    EXPECT_EQ(stored({Format::float8_e4m3, token}, {896, 0x1.8p-9F, 33}),
              (std::vector<float>{896, 0x1p-8F, 32}));
    // e5m2: 57344 * 4 / 57344 = 4, steps of 16 above 64.
    EXPECT_EQ(stored({Format::float8_e5m2, token}, {57344 * 4, 70}),
              (std::vector<float>{57344 * 4, 64}));
    // fp4: 13 = 1.625 * 2^3, the scale is 2^(3 - 2); 13 / 2 = 6.5 saturates to 6.
    EXPECT_EQ(stored({Format::mxfp4, block}, {13, 5, -2.6F, 0.4F}),
              (std::vector<float>{12, 4, -3, 0}));
    EXPECT_EQ(stored({Format::mxfp4, block}, {12, 11, 5.1F}), (std::vector<float>{12, 12, 6}));
}

TEST(Quantize, UnscaledValuesSaturate) {
    EXPECT_EQ(stored({Format::float8_e4m3}, {1e9F, -449, 1.06F}),
              (std::vector<float>{448, -448, 1}));
    EXPECT_EQ(stored({Format::float8_e5m2}, {1e9F, -60000, 1.1F}),
              (std::vector<float>{57344, -57344, 1}));
    EXPECT_EQ(stored({Format::float16}, {1e6F, -65520}), (std::vector<float>{65504, -65504}));
    EXPECT_EQ(stored({Format::bfloat16}, {std::numeric_limits<float>::max()})[0],
              largest_of(Format::bfloat16));
    EXPECT_EQ(stored({Format::bfloat16}, {1 + 0x1p-8F, 1 + 0x3p-8F}),
              (std::vector<float>{1, 1 + 0x1p-6F}));
}

// Each unit of values has the scale of its own largest one: int4 keeps 7 steps of it.
TEST(Quantize, AScaleIsSharedByItsUnitAlone) {
    constexpr int64_t kTokens = 2, kHeads = 2, kChannels = 2 * kScaleBlock;
    const auto made = [&](ScaleUnit unit) {
        Tensor<float, 3> values({kTokens, kHeads, kChannels});
        float largest = 7;
        for (int64_t begin = 0; begin < values.size(); begin += kScaleBlock, largest *= 2) {
            values.data()[begin] = largest;
            values.data()[begin + 1] = 1.2F;
        }
        store_as({Format::int4, unit}, values);
        std::vector<float> small;
        for (int64_t begin = 0; begin < values.size(); begin += kScaleBlock)
            small.push_back(values.data()[begin + 1]);
        return small;
    };
    // Scales 1, 2, 4, ..., 128 of the eight blocks: 1.2 is 1 at 1, 2 at 2, and 0 from 4 on.
    EXPECT_EQ(made(block), (std::vector<float>{1, 2, 0, 0, 0, 0, 0, 0}));
    // Of two blocks at a time: 2, 8, 32, 128.
    EXPECT_EQ(made(token), (std::vector<float>{2, 2, 0, 0, 0, 0, 0, 0}));
    EXPECT_EQ(made(tensor), (std::vector<float>(8, 0)));
}

TEST(Quantize, TheLastBlockMayBeShort) {
    std::vector<float> values(static_cast<size_t>(kScaleBlock) + 2, 700);
    values[static_cast<size_t>(kScaleBlock)] = 7;
    values.back() = 3;
    const std::vector<float> kept = stored({Format::int4, block}, values);
    EXPECT_EQ(kept.back(), 3);
    EXPECT_EQ(kept.front(), 700);
}

TEST(Quantize, ZeroNanAndInfinity) {
    for (NumberFormat format : kFormats)
        for (ScaleUnit unit : scale_units(format)) {
            const Precision precision{format, unit};
            const std::string name = to_string(precision);
            EXPECT_EQ(stored(precision, {0, 0, 0}), (std::vector<float>{0, 0, 0})) << name;
            // NaN stays, and has no part in the scale: its neighbours are kept as without it.
            const std::vector<float> without = stored(precision, {3, -1.7F, 0.3F});
            const std::vector<float> with = stored(precision, {3, -1.7F, 0.3F, kNan});
            EXPECT_TRUE(std::equal(without.begin(), without.end(), with.begin())) << name;
            EXPECT_TRUE(std::isnan(with[3])) << name;
            EXPECT_TRUE(std::isnan(stored(precision, {kNan})[0])) << name;
            if (format == Format::float32) continue;
            // Infinity is the largest value that the scale of the others gives.
            const std::vector<float> of = stored(precision, {kInfinity, -kInfinity, 1});
            EXPECT_TRUE(std::isfinite(of[0])) << name;
            EXPECT_GE(of[0], 1) << name;
            EXPECT_EQ(of[1], -of[0]) << name;
        }
    const std::vector<float> f32s{kInfinity, -0.0F, 1e-45F, 3e38F};
    EXPECT_EQ(stored({Format::float32}, f32s), f32s);
}

TEST(Quantize, TheSmallestValuesAreKept) {
    constexpr float kTiny = std::numeric_limits<float>::denorm_min();
    for (NumberFormat format :
         {Format::float8_e4m3, Format::float8_e5m2, Format::int8, Format::int4})
        EXPECT_EQ(stored({format, token}, {kTiny, -kTiny})[0], kTiny) << to_string(format);
    // 2^-127 is the least scale of fp4.
    EXPECT_EQ(stored({Format::mxfp4, block}, {0x1p-128F, kTiny}),
              (std::vector<float>{0x1p-128F, 0}));
}

/// Sum of squares of what is lost, over that of the values.
double loss(const Precision& precision, const Tensor<float, 3>& values) {
    Tensor<float, 3> kept(values.shape());
    std::copy_n(values.data(), values.size(), kept.data());
    store_as(precision, kept);
    if (precision.rotated) rotate(kept);
    double lost = 0, all = 0;
    for (int64_t i = 0; i < values.size(); ++i) {
        lost += std::pow(double{kept.data()[i]} - values.data()[i], 2);
        all += std::pow(double{values.data()[i]}, 2);
    }
    return lost / all;
}

// A bit of a fraction halves the step, and a step has a variance of its square over 12: four times
// less for each. Smaller units never have larger scales.
TEST(Quantize, MoreBitsAndSmallerUnitsLoseLess) {
    const Tensor<float, 3> values = test::normal<3>({64, 2, 64}, 1);
    const std::vector<std::vector<Precision>> chains{
        {{Format::int4, token},
         {Format::int8, token},
         {Format::bfloat16},
         {Format::float16},
         {Format::float32}},
        {{Format::int4, block}, {Format::int8, block}, {Format::float16}, {Format::float32}},
        {{Format::float8_e5m2, token},
         {Format::float8_e4m3, token},
         {Format::bfloat16},
         {Format::float16}},
        {{Format::mxfp4, block}, {Format::float8_e4m3, block}, {Format::bfloat16}},
    };
    for (const std::vector<Precision>& chain : chains)
        for (size_t n = 0; n + 1 < chain.size(); ++n)
            EXPECT_LT(loss(chain[n + 1], values), 0.5 * loss(chain[n], values))
                << to_string(chain[n]) << " and " << to_string(chain[n + 1]);
    EXPECT_EQ(loss({Format::float32}, values), 0);
    for (NumberFormat format : {Format::int8, Format::int4}) {
        EXPECT_LT(loss({format, block}, values), loss({format, token}, values));
        EXPECT_LT(loss({format, token}, values), loss({format, tensor}, values));
    }
}

TEST(Quantize, TheRotationByHand) {
    std::vector<float> values{1, 2, 3, 4};
    rotate({values.data(), {1, 1, 4}});
    EXPECT_EQ(values, (std::vector<float>{5, -1, -2, 0}));
    // Heads and tokens are rotated for themselves.
    std::vector<float> heads{1, 0, 0, 0, 0, 2, 0, 0};
    rotate({heads.data(), {1, 2, 4}});
    EXPECT_EQ(heads, (std::vector<float>{0.5, 0.5, 0.5, 0.5, 1, -1, 1, -1}));
    std::vector<float> one{3};
    rotate({one.data(), {1, 1, 1}});
    EXPECT_EQ(one, (std::vector<float>{3}));
}

// Each of log2 d levels of sums rounds by u of a number that is at most the row's L1 norm, which is
// at most sqrt(d) of its L2 norm; over sqrt(d), that is (log2 d + 2) u of the L2 norm, the factor
// and its rounding included. The inverse does the same again.
TEST(Quantize, TheRotationIsItsOwnInverse) {
    constexpr int64_t kChannels = 128;
    constexpr double kBound = 2 * (7 + 2) * 0x1p-24;
    const Tensor<float, 3> values = test::normal<3>({16, 2, kChannels}, 2);
    Tensor<float, 3> twice(values.shape());
    std::copy_n(values.data(), values.size(), twice.data());
    rotate(twice);
    EXPECT_NE(twice(0, 0, 0), values(0, 0, 0));
    rotate(twice);
    for (int64_t row = 0; row < values.size(); row += kChannels) {
        double norm = 0;
        for (int64_t c = row; c < row + kChannels; ++c)
            norm += std::pow(double{values.data()[c]}, 2);
        for (int64_t c = row; c < row + kChannels; ++c)
            EXPECT_NEAR(twice.data()[c], values.data()[c], kBound * std::sqrt(norm));
    }
}

// One channel takes the whole range of int4, so that the others are stored as 0: with 63 standard
// normals beside a 100, 63 of 10063 of the squares are lost, give or take five standard deviations
// of a sum of 64 * 63 squares. Rotated, the 100 is 12.5 in every
// channel, the largest is about 16, and a step of 16 / 7 loses 64 * (16 / 7)^2 / 12 = 28.
TEST(Quantize, TheRotationSpreadsAnOutlier) {
    Tensor<float, 3> values = test::normal<3>({64, 1, 64}, 3);
    for (int64_t i = 0; i < 64; ++i) values(i, 0, 5) = 100;
    const double plain = loss({Format::int4, token}, values);
    EXPECT_NEAR(plain, 63.0 / 10063, 5 * std::sqrt(2.0 / (64 * 63)) * 63 / 10063);
    EXPECT_LT(loss({Format::int4, token, true}, values), 0.6 * plain);
}

TEST(Quantize, RefusesARotationOfOtherWidths) {
    for (int64_t channels : {3, 96}) {
        Tensor<float, 3> values({2, 1, channels});
        try {
            store_as({Format::int8, token, true}, values);
            FAIL() << channels;
        } catch (const InputError& error) {
            EXPECT_NE(std::string(error.what()).find(concat("power of two, not ", channels)),
                      std::string::npos);
        }
    }
}

TEST(Quantize, BitsByHand) {
    EXPECT_EQ(bits_per_token({Format::float32}, 10, 4, 64), 4 * 64 * 32);
    EXPECT_EQ(bits_per_token({Format::float8_e4m3}, 10, 4, 64), 4 * 64 * 8);
    EXPECT_EQ(bits_per_token({Format::int8, tensor}, 16, 4, 64), 4 * 64 * 8 + 2);
    EXPECT_EQ(bits_per_token({Format::int8, token}, 10, 4, 64), 4 * (64 * 8 + 32));
    EXPECT_EQ(bits_per_token({Format::int4, block}, 10, 4, 64), 4 * (64 * 4 + 2 * 32));
    EXPECT_EQ(bits_per_token({Format::mxfp4, block}, 10, 4, 64), 4 * (64 * 4 + 2 * 8));
    EXPECT_EQ(bits_per_token({Format::mxfp4, block}, 10, 1, 33), 33 * 4 + 2 * 8);
    EXPECT_EQ(to_string(Precision{Format::int8, token, true}), "int8, scale per token, rotated");
    EXPECT_EQ(to_string(Precision{}), "f32");
}

}  // namespace
}  // namespace msa
