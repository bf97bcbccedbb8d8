// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>

#include "analysis/output_error.h"
#include "tests/support/values.h"

namespace msa::analysis {
namespace {

using test::tensor;

TEST(OutputError, IsTheRatioOfNormsOverAllRowsTogether) {
    // Two queries, two heads, two channels. Head 0 is off by (0, 5) and (12, 0) of (3, 4) and
    // (0, 12): 13 / 13. Head 1 is off by (0, 0) and (3, 4) of (6, 8) and (0, 0): 5 / 10, though its
    // second row alone has no relative error.
    const auto dense = tensor<float, 3>({2, 2, 2}, {3, 4, 6, 8, 0, 12, 0, 0});
    const auto sparse = tensor<float, 3>({2, 2, 2}, {3, 9, 6, 8, 12, 12, 3, 4});
    OutputError error(2);
    error.add(std::vector(2, RowKind::counted), sparse, dense);
    EXPECT_EQ(error.relative(), (std::vector<double>{1, 0.5}));
}

TEST(OutputError, ChunksAddUpAndOtherRowsAreLeftOut) {
    const auto dense = tensor<float, 3>({3, 1, 2}, {3, 4, NAN, NAN, 0, 12});
    const auto sparse = tensor<float, 3>({3, 1, 2}, {3, 4, 7, 7, 0, 12 + 6.5F});
    const std::vector<RowKind> kinds{RowKind::counted, RowKind::trivial, RowKind::counted};
    OutputError whole(1), chunked(1);
    whole.add(kinds, sparse, dense);
    for (int64_t i = 0; i < 3; ++i)
        chunked.add(std::span(kinds).subspan(static_cast<size_t>(i), 1), sparse.view().slice(i, 1),
                    dense.view().slice(i, 1));
    EXPECT_EQ(whole.relative()[0], 0.5);
    EXPECT_EQ(chunked.relative(), whole.relative());
}

TEST(OutputError, SumsOfRowsGiveTheSame) {
    // Two queries, two groups of two heads, two channels; the second query is not counted.
    const auto dense =
        tensor<float, 3>({2, 4, 2}, {3, 4, 6, 8, 0, 12, 0, 5, 1, 1, 2, 2, 7, 1, 0, 0});
    const auto sparse =
        tensor<float, 3>({2, 4, 2}, {3, 9, 6, 8, 12, 12, 3, 4, 0, 1, 2, 5, 7, 3, 1, 0});
    const Tensor<double, 2> differences = squared_differences(sparse, dense, 2);
    const Tensor<double, 2> norms = squared_differences(dense, {}, 2);
    EXPECT_EQ(differences(0, 0), 25);
    EXPECT_EQ(differences(0, 1), 144 + 9 + 1);
    EXPECT_EQ(norms(1, 0), 1 + 1 + 4 + 4);
    const std::vector<RowKind> kinds{RowKind::counted, RowKind::trivial};
    OutputError rows(2);
    rows.add(kinds, differences, norms);
    EXPECT_EQ(rows.differences(), (std::vector<double>{25, 154}));
    EXPECT_EQ(rows.norms(), (std::vector<double>{125, 169}));
    EXPECT_EQ(rows.dead_heads(), 0);
}

TEST(OutputError, SquaresOfAnyWidthAreAllAddedUp) {
    for (int64_t width = 0; width < 20; ++width) {
        const std::vector<float> ones(20, 1.0F), threes(20, 3.0F);
        EXPECT_EQ(squared_difference(threes.data(), ones.data(), width),
                  4 * static_cast<double>(width));
        EXPECT_EQ(squared_difference(threes.data(), nullptr, width),
                  9 * static_cast<double>(width));
    }
}

TEST(OutputError, WithoutRowsOrWithoutDenseOutputIsNaN) {
    EXPECT_TRUE(std::isnan(OutputError(1).relative()[0]));
    const auto zero = tensor<float, 3>({1, 2, 1}, {0, 0});
    const auto off = tensor<float, 3>({1, 2, 1}, {0, 1});
    OutputError error(2);
    error.add(std::vector{RowKind::without_keys}, off, zero);
    EXPECT_TRUE(std::isnan(error.relative()[1]));
    error.add(std::vector{RowKind::counted}, off, zero);
    EXPECT_TRUE(std::isnan(error.relative()[0]));
    EXPECT_TRUE(std::isnan(error.relative()[1]));
}

TEST(OutputError, DeadHeadsAreLeftOutOfTheMeanAndCounted) {
    const auto dense = tensor<float, 3>({1, 3, 1}, {2, 0, 4});
    const auto sparse = tensor<float, 3>({1, 3, 1}, {1, 0, 1});
    OutputError error(3);
    EXPECT_EQ(error.dead_heads(), 0);
    EXPECT_TRUE(std::isnan(error.mean()));
    error.add(std::vector{RowKind::counted}, sparse, dense);
    EXPECT_EQ(error.dead_heads(), 1);
    EXPECT_EQ(error.mean(), (0.5 + 0.75) / 2);
}

}  // namespace
}  // namespace msa::analysis
