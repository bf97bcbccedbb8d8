// SPDX-License-Identifier: MIT
// By hand; the goldens of tests/backends/test_goldens.cpp cover a whole layer, but one epsilon and
// one offset only.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "core/indexer/projection.h"

namespace msa {
namespace {

TEST(Projection, RowsOfTheWeightAreOutputs) {
    Tensor<float, 2> x({1, 2}), weight({4, 2});
    x(0, 0) = 2;
    x(0, 1) = 3;
    for (int64_t row = 0; row < 4; ++row) weight(row, row % 2) = static_cast<float>(row + 1);
    const Tensor<float, 3> heads = project(x, weight, 2);
    EXPECT_EQ(heads.shape(), (Shape<3>{1, 2, 2}));
    EXPECT_EQ(heads(0, 0, 0), 2.0F);
    EXPECT_EQ(heads(0, 0, 1), 6.0F);
    EXPECT_EQ(heads(0, 1, 0), 6.0F);
    EXPECT_EQ(heads(0, 1, 1), 12.0F);
    EXPECT_THROW(project(x, weight, 3), InputError);
    EXPECT_THROW(project(x, Tensor<float, 2>({4, 3}), 2), InputError);
}

TEST(Projection, NormHasItsEpsilonAndItsOffset) {
    // Mean square 12.5, epsilon 3.5: divided by 4.
    Tensor<float, 1> weight({2});
    weight(0) = 2;
    weight(1) = -1;
    for (float offset : {0.0F, 1.0F}) {
        Tensor<float, 3> heads({1, 1, 2});
        heads(0, 0, 0) = 3;
        heads(0, 0, 1) = 4;
        rms_norm(heads, weight, 3.5, offset);
        EXPECT_FLOAT_EQ(heads(0, 0, 0), 0.75F * (offset + 2));
        EXPECT_FLOAT_EQ(heads(0, 0, 1), offset - 1);
    }
    Tensor<float, 3> wide({1, 1, 3});
    EXPECT_THROW(rms_norm(wide, weight, 1, 0), InputError);
}

TEST(Projection, RopeRotatesHalvesAndPassesTheRest) {
    // rotary_dim 4 of 5, theta 100: channels (0, 2) turn by position, (1, 3) by position / 10.
    Tensor<float, 3> heads({1, 1, 5});
    for (int64_t c = 0; c < 5; ++c) heads(0, 0, c) = static_cast<float>(c + 1);
    apply_rope(heads, {7}, 4, 100);
    EXPECT_NEAR(heads(0, 0, 0), 1 * std::cos(7.0) - 3 * std::sin(7.0), 1e-6);
    EXPECT_NEAR(heads(0, 0, 2), 3 * std::cos(7.0) + 1 * std::sin(7.0), 1e-6);
    EXPECT_NEAR(heads(0, 0, 1), 2 * std::cos(0.7) - 4 * std::sin(0.7), 1e-6);
    EXPECT_NEAR(heads(0, 0, 3), 4 * std::cos(0.7) + 2 * std::sin(0.7), 1e-6);
    EXPECT_EQ(heads(0, 0, 4), 5.0F);
    for (int64_t wrong : {0, 3, 6}) EXPECT_THROW(apply_rope(heads, {7}, wrong, 100), InputError);
    EXPECT_THROW(apply_rope(heads, {7, 8}, 4, 100), InputError);
}

}  // namespace
}  // namespace msa
