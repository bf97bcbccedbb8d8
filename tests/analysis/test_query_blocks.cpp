// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <utility>

#include "analysis/query_blocks.h"
#include "core/error.h"

namespace msa::analysis {
namespace {

/// Sequences of 300 and 130 tokens, of which every third one is counted but for the first block's.
QueryBlocks two_sequences() {
    Problem p = square_problem(0, 1, 1, 16, 0, 8);
    p.batch = PackedBatch({0, 300, 430}, {0, 300, 430});
    std::vector<RowKind> kinds(430, RowKind::trivial);
    for (size_t i = 129; i < kinds.size(); i += 3) kinds[i] = RowKind::counted;
    return query_blocks(p, kinds);
}

TEST(QueryBlocks, AreStretchesOfTheirSequence) {
    const QueryBlocks blocks = two_sequences();
    EXPECT_EQ(blocks.begins, (std::vector<int64_t>{0, 128, 256, 300, 428, 430}));
    EXPECT_EQ(blocks.sequences, (std::vector<int64_t>{0, 0, 0, 1, 1}));
    EXPECT_EQ(blocks.rows, (std::vector<int64_t>{0, 43, 14, 43, 1}));
    EXPECT_EQ(blocks.count(), 5);
    EXPECT_EQ(blocks.range(3), (QueryRange{300, 428}));
    EXPECT_EQ(blocks.at(256), 2);
    EXPECT_EQ(blocks.at(430), 5);
}

/// Queries that are left out leave no block behind.
TEST(QueryBlocks, AreOfTheQueriesThatThereAre) {
    Problem p = square_problem(0, 1, 1, 16, 0, 8);
    p.batch = PackedBatch({0, 600}, {0, 600});
    const Problem some = p.with_query_rows(std::vector<int64_t>{5, 127, 128, 599});
    const QueryBlocks blocks = query_blocks(some, std::vector(4, RowKind::counted));
    EXPECT_EQ(blocks.rows, (std::vector<int64_t>{2, 1, 1}));
}

State state(std::vector<double> sums, std::vector<int64_t> counts) {
    return {std::move(sums), std::move(counts)};
}

TEST(BlockSums, OfPartsOneBehindTheOtherAreThoseOfTheWhole) {
    BlockSums whole(3), first(2), second(1);
    for (int64_t b = 0; b < 3; ++b) {
        const State of = state({0.1 * static_cast<double>(b + 1), 1e16}, {b});
        whole.add(b, of);
        (b < 2 ? first : second).add(b % 2, of);
    }
    first.append(second);
    const BlockSums stored(whole.sums().view(), whole.counts().view());
    for (const BlockSums* of : {&std::as_const(first), &stored}) {
        EXPECT_EQ(of->blocks(), 3);
        EXPECT_EQ(of->total().sums, whole.total().sums);
        EXPECT_EQ(of->total().counts, whole.total().counts);
    }
    EXPECT_EQ(whole.total().sums[0], 0.1 + 0.2 + 0.1 * 3);
    EXPECT_EQ(whole.total().counts, (std::vector<int64_t>{3}));
}

TEST(BlockSums, GrowOnTopOfWhatABlockHas) {
    BlockSums sums(2);
    sums.add(1, state({1, 2}, {1}));
    sums.add(1, state({4, 8}, {2}));
    sums.add(0, state({0, 0}, {0}));
    EXPECT_EQ(sums.sums()(1, 1), 10);
    EXPECT_EQ(sums.counts()(1, 0), 3);
    EXPECT_THROW(sums.add(1, state({1}, {1})), InputError);
}

}  // namespace
}  // namespace msa::analysis
