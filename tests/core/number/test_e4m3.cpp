// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/number/e4m3.h"

namespace msa {
namespace {

float decoded(int bits) {
    e4m3 x;
    x.bits = static_cast<uint8_t>(bits);
    return static_cast<float>(x);
}

TEST(E4m3, DecodesTheSpecificationsExamples) {
    EXPECT_EQ(decoded(0x7E), 448.0F);
    EXPECT_EQ(decoded(0x08), 0x1p-6F);  // smallest normal
    EXPECT_EQ(decoded(0x07), 0x7p-9F);  // largest subnormal
    EXPECT_EQ(decoded(0x01), 0x1p-9F);  // smallest subnormal
    EXPECT_EQ(decoded(0x38), 1.0F);
    EXPECT_EQ(decoded(0xB9), -1.125F);
    EXPECT_TRUE(std::isnan(decoded(0x7F)));
    EXPECT_TRUE(std::isnan(decoded(0xFF)));
    EXPECT_TRUE(std::signbit(decoded(0x80)));
}

TEST(E4m3, EveryCodeComesBack) {
    for (int bits = 0; bits < 256; ++bits) EXPECT_EQ(e4m3(decoded(bits)).bits, bits);
}

TEST(E4m3, TakesTheNearestAndAtATieTheEven) {
    for (int bits = 0; bits < 0x7E; ++bits) {
        const float low = decoded(bits), high = decoded(bits + 1), middle = (low + high) / 2;
        EXPECT_EQ(e4m3(std::nextafter(middle, 0.0F)).bits, bits);
        EXPECT_EQ(e4m3(std::nextafter(middle, high)).bits, bits + 1);
        EXPECT_EQ(e4m3(middle).bits, bits % 2 == 0 ? bits : bits + 1);
        EXPECT_EQ(e4m3(-middle).bits, 0x80 | (bits % 2 == 0 ? bits : bits + 1));
    }
}

TEST(E4m3, SaturatesAndKeepsNan) {
    EXPECT_EQ(static_cast<float>(e4m3(1e9F)), 448.0F);
    EXPECT_EQ(static_cast<float>(e4m3(-std::numeric_limits<float>::infinity())), -448.0F);
    EXPECT_TRUE(std::isnan(static_cast<float>(e4m3(std::numeric_limits<float>::quiet_NaN()))));
    EXPECT_EQ(e4m3(std::numeric_limits<float>::denorm_min()).bits, 0);
}

}  // namespace
}  // namespace msa
