// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>

#include "analysis/popularity.h"
#include "core/selection.h"
#include "tests/support/values.h"

namespace msa::analysis {
namespace {

using test::tensor;

using Counts = std::vector<int64_t>;

View<const int64_t, 1> view(const Counts& counts) {
    return {counts.data(), {static_cast<int64_t>(counts.size())}};
}

TEST(Popularity, CountsQueriesPerGroupAndBlockOfItsSequence) {
    Problem p = square_problem(0, 2, 2, 16, 0, 8);
    p.batch = PackedBatch({0, 2, 2, 3}, {0, 24, 24, 40});  // 3 blocks, none, 2 blocks
    constexpr int32_t none = kNoBlock;
    const auto ids = tensor<int32_t, 3>({3, 2, 2}, {0, 2, 1, 2,     // query 0, groups 0 and 1
                                                    0, 2, 2, none,  // query 1
                                                    0, 1, none, none});
    const Counts want{2, 0, 2, 1, 1, 0, 1, 2, 0, 0};
    Popularity whole(p), chunked(p);
    whole.add(p, ids);
    for (const QueryRange range : {QueryRange{0, 1}, QueryRange{1, 3}})
        chunked.add(p.with_queries(range), ids.view().slice(range.begin, range.end - range.begin));
    for (const Popularity* popularity : {&whole, &chunked}) {
        const View<const int64_t, 2> counts = popularity->queries_per_block();
        ASSERT_EQ(counts.shape(), (Shape<2>{2, 5}));
        EXPECT_EQ(Counts(counts.data(), counts.data() + 10), want);
    }
}

TEST(LorenzCurve, ByHand) {
    EXPECT_EQ(lorenz_curve(view({5, 0, 3, 8})), (std::vector<double>{0, 0, 3.0 / 16, 8.0 / 16, 1}));
    EXPECT_EQ(lorenz_curve(view({7, 7})), (std::vector<double>{0, 0.5, 1}));
    EXPECT_EQ(lorenz_curve(view({0, 0})), (std::vector<double>{0, 0, 0}));
    EXPECT_EQ(lorenz_curve(view({})), (std::vector<double>{0}));
}

TEST(Gini, ClosedForms) {
    EXPECT_EQ(gini(view({6, 6, 6, 6})), 0);
    EXPECT_EQ(gini(view({0, 9, 0, 0})), 0.75);  // one of n: 1 - 1/n
    EXPECT_EQ(gini(view({0, 0, 0})), 0);
    EXPECT_EQ(gini(view({})), 0);
    // Mean absolute difference over twice the mean.
    const Counts counts{3, 1, 4, 1, 5, 9, 2, 6};
    double differences = 0, sum = 0;
    for (int64_t a : counts) {
        sum += static_cast<double>(a);
        for (int64_t b : counts) differences += static_cast<double>(std::abs(a - b));
    }
    EXPECT_DOUBLE_EQ(gini(view(counts)), differences / (2 * 8 * sum));
}

TEST(Chunks, AreAtMostTwoKBkQueries) {
    // 2 * 2 * 8 = 32 queries to a piece.
    EXPECT_EQ(chunks(view({0, 1, 32, 33, 64, 65}), 2, 8), 0 + 1 + 1 + 2 + 2 + 3);
}

TEST(MmaFill, PacksTheQueriesOfOneBlock) {
    // G = 16: 8 queries to a tile.
    EXPECT_EQ(mma_fill(view({8, 16}), 16), 1);
    EXPECT_EQ(mma_fill(view({1, 0}), 16), 1.0 / 8);
    EXPECT_EQ(mma_fill(view({9, 3}), 16), 12.0 / 24);
    EXPECT_EQ(mma_fill(view({5}), 1), 5.0 / 128);
    EXPECT_EQ(mma_fill(view({3}), 128), 1);
    EXPECT_EQ(mma_fill(view({26}), 5), 1);  // ceil(128 / 5) queries
    EXPECT_TRUE(std::isnan(mma_fill(view({0, 0}), 16)));
}

}  // namespace
}  // namespace msa::analysis
