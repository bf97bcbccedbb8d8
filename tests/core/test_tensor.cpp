// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "core/number/half.h"
#include "core/tensor.h"
#include "tests/support/sanitized.h"

namespace msa {
namespace {

TEST(Tensor, IsZeroedAlignedAndRowMajor) {
    Tensor<float, 3> t({3, 4, 5});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data()) % 64, 0U);
    for (int64_t i = 0; i < t.size(); ++i) EXPECT_EQ(t.data()[i], 0.0F);
    t(2, 3, 4) = 7;
    EXPECT_EQ(t.data()[2 * 20 + 3 * 5 + 4], 7.0F);
    EXPECT_EQ(t.view()[2][3](4), 7.0F);
    EXPECT_EQ(t.view().slice(1, 2)(1, 3, 4), 7.0F);
}

TEST(Tensor, LargeMemoryIsKeptForTheNextOfItsSize) {
    if (test::kSanitized) GTEST_SKIP() << "a sanitizer looks at what is freed";
    constexpr int64_t kFloats = int64_t{1} << 20;
    const auto address_of_one = [&](int64_t floats) {
        Tensor<float, 1> t({floats});
        EXPECT_EQ(std::count(t.data(), t.data() + floats, 0.0F), floats);
        std::fill_n(t.data(), floats, 7.0F);
        return t.data();
    };
    float* const first = address_of_one(kFloats);
    EXPECT_EQ(address_of_one(kFloats), first);
    address_of_one(2 * kFloats);
    const Tensor<float, 1> one({kFloats}), another({kFloats});
    EXPECT_NE(one.data(), another.data());
}

TEST(Tensor, MemoryThatTheSystemRefusesIsAnErrorAndNoMore) {
    if (test::kSanitized) GTEST_SKIP() << "a sanitizer ends the program";
    constexpr int64_t kFloats = int64_t{1} << 20;
    const auto make = [](int64_t floats) { return Tensor<float, 1>({floats}, Fill::nothing); };
    make(kFloats);
    EXPECT_THROW(make(int64_t{1} << 46), std::bad_alloc);  // more than there are addresses
    EXPECT_NO_THROW(make(kFloats));
}

TEST(Tensor, EmptyIsPresentAndDefaultIsAbsent) {
    EXPECT_TRUE(static_cast<bool>(Tensor<float, 2>({0, 5}).view()));
    EXPECT_FALSE(static_cast<bool>(Tensor<float, 2>().view()));
    EXPECT_FALSE(static_cast<bool>(View<const int32_t, 3>()));
    EXPECT_FALSE(static_cast<bool>(In<3>(View<const float, 3>())));
}

TEST(Tensor, OffsetsAre64Bit) {
    // Never dereferenced: 2^33 elements.
    const View<const float, 3> huge(nullptr, {int64_t{1} << 20, 64, 128});
    EXPECT_EQ(huge.size(), int64_t{1} << 33);
}

TEST(AnyView, RemembersTheElementType) {
    Tensor<bf16, 3> t({1, 2, 3});
    const In<3> in = t.view();
    EXPECT_EQ(in.element(), Element::bf16);
    EXPECT_EQ(in.as<const bf16>().data(), t.data());
    EXPECT_THROW(in.as<const float>(), std::logic_error);
    Tensor<float, 2> f({1, 1});
    EXPECT_EQ(Out<2>(f).element(), Element::f32);
}

TEST(Bf16, RoundsToNearestEven) {
    EXPECT_EQ(static_cast<float>(bf16(1.0F + 0x1p-8F)), 1.0F);           // tie to even, down
    EXPECT_EQ(static_cast<float>(bf16(1.0F + 3 * 0x1p-8F)), 1.015625F);  // tie to even, up
    EXPECT_EQ(static_cast<float>(bf16(1.0F + 0x1.8p-8F)), 1.0078125F);
    EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::nanf("")))));
}

}  // namespace
}  // namespace msa
