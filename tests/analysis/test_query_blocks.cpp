// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>

#include "analysis/query_blocks.h"
#include "tests/support/values.h"

namespace msa::analysis {
namespace {

using test::tensor;

/// Sequences of 5 and 3 tokens, of which positions 1, 2, 4 and 0, 2 are counted.
QueryBlocks two_sequences() {
    Problem p = square_problem(0, 1, 1, 16, 0, 8);
    p.batch = PackedBatch({0, 5, 8}, {0, 5, 8});
    std::vector<RowKind> kinds(8, RowKind::trivial);
    for (size_t i : std::vector<size_t>{1, 2, 4, 5, 7}) kinds[i] = RowKind::counted;
    return query_blocks(p, kinds, 2);
}

TEST(QueryBlocks, AreStretchesOfTheirSequence) {
    const QueryBlocks blocks = two_sequences();
    EXPECT_EQ(blocks.of_query, (std::vector<int64_t>{-1, 0, 1, -1, 2, 3, -1, 4}));
    EXPECT_EQ(blocks.sequences, (std::vector<int64_t>{0, 0, 0, 1, 1}));
    EXPECT_EQ(blocks.rows, (std::vector<int64_t>{1, 1, 1, 1, 1}));
    EXPECT_EQ(blocks.count(), 5);
}

/// The last stretch of a sequence and the first of the next are two blocks, though both are the
/// first four positions.
TEST(QueryBlocks, EndWithTheSequence) {
    Problem p = square_problem(0, 1, 1, 16, 0, 8);
    p.batch = PackedBatch({0, 2, 5}, {0, 2, 5});
    const QueryBlocks blocks = query_blocks(p, std::vector(5, RowKind::counted), 4);
    EXPECT_EQ(blocks.rows, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(blocks.sequences, (std::vector<int64_t>{0, 1}));
}

/// Two columns of rows 0 to 4; the second has no value in row 3.
TEST(BlockMeans, AreOfTheRowsOfABlockInAnyChunks) {
    const std::vector<int64_t> of_query{0, 0, -1, 2, 2};
    const auto measure = [](int64_t i, RowValues values) {
        values[0] = 1 / static_cast<double>(i + 3);
        if (i != 3) values[1] = static_cast<double>(i);
    };
    BlockMeans whole(3, 2), cut(3, 2);
    whole.add(of_query, measure);
    for (int64_t i = 0; i < 5; ++i)
        cut.add(std::span(of_query).subspan(static_cast<size_t>(i), 1),
                [&](int64_t, RowValues values) { measure(i, values); });
    const std::vector<double> got = whole.values();
    ASSERT_EQ(got.size(), 6U);
    EXPECT_EQ(got[0], (1.0 / 3 + 1.0 / 4) / 2);
    EXPECT_EQ(got[1], 0.5);
    EXPECT_TRUE(std::isnan(got[2]) && std::isnan(got[3]));
    EXPECT_EQ(got[4], (1.0 / 6 + 1.0 / 7) / 2);
    EXPECT_EQ(got[5], 4);
    for (const size_t n : std::vector<size_t>{0, 1, 4, 5}) EXPECT_EQ(cut.values()[n], got[n]);
}

TEST(BlockSums, AddUpRowByRow) {
    const auto mass = tensor<double, 2>({3, 1}, {0.25, 0.5, 0.75});
    const auto differences = tensor<double, 2>({3, 1}, {4, 145, 1});
    const auto norms = tensor<double, 2>({3, 1}, {25, 1, 2});
    const std::vector<int64_t> of_query{1, -1, 1};
    BlockSums whole(2, 1), cut(2, 1);
    whole.add(of_query, mass, differences, norms);
    EXPECT_EQ(whole.mass(1, 0), 0.25 + 0.75);
    EXPECT_EQ(whole.difference(1, 0), 4 + 1);
    EXPECT_EQ(whole.norm(1, 0), 25 + 2);
    for (const auto* sums : {&whole.mass, &whole.difference, &whole.norm})
        EXPECT_EQ((*sums)(0, 0), 0);
    for (int64_t i = 0; i < 3; ++i)
        cut.add(std::span(of_query).subspan(static_cast<size_t>(i), 1), mass.view().slice(i, 1),
                differences.view().slice(i, 1), norms.view().slice(i, 1));
    EXPECT_EQ(cut.mass(1, 0), whole.mass(1, 0));
    EXPECT_EQ(cut.difference(1, 0), whole.difference(1, 0));
    EXPECT_EQ(cut.norm(1, 0), whole.norm(1, 0));
}

}  // namespace
}  // namespace msa::analysis
