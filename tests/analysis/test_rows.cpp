// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>

#include "analysis/rows.h"

namespace msa::analysis {
namespace {

std::vector<int64_t> rows_of(const std::vector<RowKind>& kinds, RowKind kind) {
    std::vector<int64_t> rows;
    for (size_t i = 0; i < kinds.size(); ++i)
        if (kinds[i] == kind) rows.push_back(static_cast<int64_t>(i));
    return rows;
}

TEST(RowKinds, TrivialWhileTheVisibleBlocksFitIntoK) {
    const Problem p = square_problem(20, 2, 1, 16, 0, 8);
    // Query 15 sees the 16 keys of 2 blocks, query 16 the first key of the third.
    const std::vector<RowKind> kinds = row_kinds(p, 2, false);
    EXPECT_EQ(kinds.size(), 20U);
    EXPECT_EQ(rows_of(kinds, RowKind::counted), (std::vector<int64_t>{16, 17, 18, 19}));
    EXPECT_EQ(rows_of(kinds, RowKind::trivial).size(), 16U);
    EXPECT_EQ(rows_of(row_kinds(p, 3, false), RowKind::trivial).size(), 20U);
    EXPECT_EQ(rows_of(row_kinds(p, 1, false), RowKind::trivial).size(), 8U);
}

TEST(RowKinds, AllRowsCountsTheTrivialButNotTheBlind) {
    Problem p = square_problem(0, 2, 1, 16, 0, 8);
    p.batch =
        PackedBatch({0, 3, 7}, {0, 0, 2});  // no keys at all; two queries before the first key
    const std::vector<int64_t> without_keys{0, 1, 2, 3, 4}, seeing{5, 6};
    for (bool all_rows : {false, true}) {
        const std::vector<RowKind> kinds = row_kinds(p, 1, all_rows);
        EXPECT_EQ(rows_of(kinds, RowKind::without_keys), without_keys);
        EXPECT_EQ(rows_of(kinds, all_rows ? RowKind::counted : RowKind::trivial), seeing);
    }
}

TEST(RowKinds, BlocksAreThoseOfTheQuerysOwnSequence) {
    Problem p = square_problem(0, 2, 1, 16, 0, 8);
    p.batch = PackedBatch({0, 1, 2}, {0, 64, 72});  // decode after 8 blocks, and after 1
    EXPECT_EQ(row_kinds(p, 4, false), (std::vector{RowKind::counted, RowKind::trivial}));
}

TEST(MeanTest, OfNoRowsIsNaN) {
    Mean mean;
    EXPECT_TRUE(std::isnan(mean.value()));
    EXPECT_EQ(mean.count(), 0);
    mean.add(3);
    mean.add(4);
    mean.add(-1);
    EXPECT_EQ(mean.value(), 2);
    EXPECT_EQ(mean.count(), 3);
}

TEST(AddRows, SumsInRowOrderWhateverTheCut) {
    constexpr int64_t kRows = 1000;
    // Sums whose last bits depend on the order; every third row does not count in the second mean.
    const auto value = [](int64_t row) { return 1.0 / static_cast<double>(3 * row + 1); };
    std::vector<Mean> want(2), got(2);
    for (int64_t row = 0; row < kRows; ++row) {
        want[0].add(value(row));
        if (row % 3 != 0) want[1].add(-value(row));
    }
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {1, 700}, {700, kRows}})
        add_rows(got, end - begin, [&, first = begin](int64_t n, RowValues values) {
            const int64_t row = first + n;
            values[0] = value(row);
            if (row % 3 != 0) values[1] = -value(row);
        });
    EXPECT_EQ(values(got), values(want));
    EXPECT_EQ(got[0].count(), kRows);
    EXPECT_EQ(got[1].count(), want[1].count());
}

TEST(MeanTest, AverageWeighsGroupsAlikeWhateverTheirRows) {
    std::vector<Mean> groups(2);
    for (double value : {1.0, 2.0, 3.0, 6.0}) groups[0].add(value);
    groups[1].add(9);
    EXPECT_EQ(values(groups), (std::vector<double>{3, 9}));
    EXPECT_EQ(average(values(groups)), 6);  // over all rows it would be 4.2
    groups.emplace_back();
    EXPECT_TRUE(std::isnan(average(values(groups))));
    EXPECT_TRUE(std::isnan(average({})));
}

}  // namespace
}  // namespace msa::analysis
