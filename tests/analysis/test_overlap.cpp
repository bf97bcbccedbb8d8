// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>

#include "analysis/overlap.h"
#include "tests/support/values.h"

namespace msa::analysis {
namespace {

using test::tensor;

TEST(Overlap, IsIntersectionOverUnion) {
    using Ids = std::vector<int32_t>;
    EXPECT_EQ(overlap(Ids{0, 2, 5}, Ids{0, 2, 5}), 1);
    EXPECT_EQ(overlap(Ids{0, 2, 5}, Ids{1, 3}), 0);
    EXPECT_EQ(overlap(Ids{0, 2, 5, 7}, Ids{2, 7, 9}), 2.0 / 5);
    EXPECT_EQ(overlap(Ids{2, 7, 9}, Ids{0, 2, 5, 7}), 2.0 / 5);
    EXPECT_EQ(overlap(Ids{}, Ids{3}), 0);
    EXPECT_EQ(overlap(Ids{}, Ids{}), 1);
}

TEST(GroupOverlap, IsAMeanOverCountedRows) {
    const auto ids = tensor<int32_t, 3>(
        {3, 2, 3}, {0, 1, 2, 0, 1, 2, 0, 1, 2, 2, 3, kNoBlock, 0, 1, 2, 7, 8, 9});
    GroupOverlap overlap(2);
    overlap.add(std::vector{RowKind::counted, RowKind::counted, RowKind::trivial}, ids);
    const Tensor<double, 2> matrix = overlap.matrix();
    EXPECT_EQ(matrix(0, 0), 1);
    EXPECT_EQ(matrix(1, 1), 1);
    EXPECT_EQ(matrix(0, 1), (1 + 0.25) / 2);
    EXPECT_EQ(matrix(1, 0), matrix(0, 1));
    EXPECT_TRUE(std::isnan(GroupOverlap(1).matrix()(0, 0)));
}

TEST(MeanOverlap, ComparesRowByRowWhateverTheWidths) {
    const auto a = tensor<int32_t, 3>({2, 1, 2}, {0, 1, 2, 3});
    const auto b = tensor<int32_t, 3>({2, 1, 3}, {0, 1, kNoBlock, 2, 4, 5});
    EXPECT_EQ(mean_overlap(a, b), (1 + 0.25) / 2);
}

TEST(Distances, AreCountedFromTheOwnBlock) {
    Problem p = square_problem(0, 1, 1, 16, 0, 8);
    p.batch = PackedBatch({0, 3}, {0, 64}, {23, 24, 63});
    const auto ids = tensor<int32_t, 3>({3, 1, 3}, {0, 1, 2, 0, 3, kNoBlock, 0, 1, 7});
    Distances distances(8);
    distances.add(p, std::vector{RowKind::counted, RowKind::counted, RowKind::trivial}, ids);
    EXPECT_EQ(distances.counts(), (std::vector<int64_t>{2, 1, 1, 1, 0, 0, 0, 0}));
}

TEST(SelectionPattern, TellsTheFirstTheLocalAndTheFarBlocksApart) {
    Problem p = square_problem(0, 3, 3, 16, 0, 8);
    p.batch = PackedBatch({0, 4}, {0, 64}, {40, 47, 62, 63});  // own blocks 5, 5, 7, 7
    const auto ids = tensor<int32_t, 3>(
        {4, 3, 4}, {
                       0, 2, 3, 5,  // first; far 2, 3
                       2, 3, 4, 5,  // local; far 2, 3
                       0, 1, 4, 5,  // both; far 1
                       0, 4, 5, kNoBlock, 0, 4, 5, kNoBlock, 0, 3, 4, 5, 1, 2, 3, 7,  // far 1, 2, 3
                       3, 4, 5, 7,                                                    // far 3, 4, 5
                       1, 2, 6, 7,         // local; far 1, 2
                       0, 6, 7, kNoBlock,  // does not count
                       0, 6, 7, kNoBlock, 0, 6, 7, kNoBlock,
                   });
    SelectionPattern pattern(3);
    EXPECT_TRUE(std::isnan(pattern.local_rate()[0]));
    const std::vector<RowKind> kinds{RowKind::counted, RowKind::counted, RowKind::counted,
                                     RowKind::trivial};
    pattern.add(p, kinds, ids);
    EXPECT_EQ(pattern.first_block_rate(), (std::vector<double>{2.0 / 3, 1.0 / 3, 2.0 / 3}));
    EXPECT_EQ(pattern.local_rate(), (std::vector<double>{1.0 / 3, 2.0 / 3, 1}));
    // Groups 0 and 1 have no far block in the second row, which counts for the other pairs alone.
    EXPECT_EQ(pattern.far_overlap(),
              (std::vector<double>{(1 + 1.0 / 5) / 2, (0 + 0 + 2.0 / 3) / 3, 0}));
}

TEST(SelectionPattern, OfOneGroupHasNoOverlap) {
    EXPECT_TRUE(SelectionPattern(1).far_overlap().empty());
    EXPECT_TRUE(std::isnan(average(SelectionPattern(1).far_overlap())));
}

}  // namespace
}  // namespace msa::analysis
