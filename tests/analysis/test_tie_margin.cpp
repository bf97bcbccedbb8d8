// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/tie_margin.h"
#include "core/number/convert.h"
#include "core/tolerance.h"
#include "tests/support/random.h"
#include "tests/support/values.h"

namespace msa::analysis {
namespace {

using test::tensor;

const float kNothing = -HUGE_VALF;

/// Queries at the last of 48 keys: 6 blocks of 8, of which k = 3 are kept and the last is forced.
class TieMargins : public testing::Test {
protected:
    static Problem problem(int64_t rows) {
        Problem p = square_problem(0, 1, 1, 16, 16, 8);
        p.batch =
            PackedBatch({0, rows}, {0, 48}, std::vector<int64_t>(static_cast<size_t>(rows), 47));
        return p;
    }
    /// tied, tied_by_rounding and all_tied of one row.
    std::vector<double> of(std::vector<float> scores, double rounding = 0,
                           const SelectionRule& rule = {.top_k = 3}) const {
        TieMargin margin(1);
        const auto row = tensor<float, 3>({1, 1, 6}, scores);
        const auto off = tensor<double, 2>({1, 1}, {rounding});
        margin.add(problem(1), rule, std::vector{RowKind::counted}, row, off.view());
        return {margin.tied()[0], margin.tied_by_rounding()[0], margin.all_tied()[0]};
    }
    using Shares = std::vector<double>;
};

TEST_F(TieMargins, AreOfTheLastKeptAndTheFirstDropped) {
    EXPECT_EQ(of({5, 4, 3, 2, 1, 9}), (Shares{0, 0, 0})) << "4 against 3";
    EXPECT_EQ(of({5, 3, 1, 3, 2, 9}), (Shares{1, 1, 0})) << "3 against 3";
    EXPECT_EQ(of({5, 5, 1, 3, 2, 9}), (Shares{0, 0, 0})) << "both of the equal ones are kept";
    EXPECT_EQ(of({5, 4, 2, 2, 2, 9}), (Shares{0, 0, 0})) << "all of the equal ones are dropped";
    EXPECT_EQ(of({0, 0, 0, 0, 0, 7}), (Shares{1, 1, 1})) << "the forced block has no say";
    EXPECT_EQ(of({-0.0F, 0, 0, -0.0F, 0, 7}), (Shares{1, 1, 1}));
    EXPECT_EQ(of({0, 0, 0, 0, 1, 7}), (Shares{1, 1, 0}));
}

TEST_F(TieMargins, OfTwiceTheRoundingAreWithin) {
    EXPECT_EQ(of({5, 4, 3, 2, 1, 9}, 0.5), (Shares{0, 1, 0}));
    EXPECT_EQ(of({5, 4, 3, 2, 1, 9}, 0.499), (Shares{0, 0, 0}));
    EXPECT_EQ(of({INFINITY, INFINITY, 3, 2, 1, 9}, 7), (Shares{0, 0, 0}));
    EXPECT_EQ(of({INFINITY, INFINITY, INFINITY, 2, 1, 9}), (Shares{1, 1, 0}));
}

TEST_F(TieMargins, AreOfRowsWithAChoice) {
    const auto none = [&](const Shares& shares) {
        return std::all_of(shares.begin(), shares.end(), [](double x) { return std::isnan(x); });
    };
    EXPECT_TRUE(none(of({5, 4, kNothing, NAN, kNothing, 9}))) << "two candidates for two slots";
    EXPECT_EQ(of({5, 4, kNothing, NAN, 4, 9}), (Shares{1, 1, 0}));
    EXPECT_TRUE(none(of({5, 4, 3, 2, 1, 9}, 0, {.top_k = 1}))) << "the forced block takes the slot";
    EXPECT_TRUE(none(of({5, 4, 3, 2, 1, 9}, 0, {.top_k = 6})));
    EXPECT_EQ(of({7, 4, 4, 2, 1, 9}, 0, {.top_k = 3, .forced_first = 1}), (Shares{1, 1, 0}))
        << "one slot is left";
}

/// Rows that do not count, chunks, and groups: the same as row by row.
TEST_F(TieMargins, OfChunksAreThoseOfTheWhole) {
    constexpr int64_t kRows = 40;
    Problem p = problem(kRows);
    p.query_heads = p.kv_heads = 2;
    Tensor<float, 3> scores = test::normal<3>({kRows, 2, 6}, 3);
    for (int64_t n = 0; n < scores.size(); ++n)
        scores.data()[n] = std::round(2 * scores.data()[n]) / 2;
    std::vector<RowKind> kinds(kRows, RowKind::counted);
    kinds[7] = RowKind::trivial;
    std::fill_n(&scores(7, 0, 0), 12, 0.0F);
    const SelectionRule rule{.top_k = 3};
    TieMargin whole(2), cut(2), other(2);
    whole.add(p, rule, kinds, scores);
    cut.add(p.with_queries({0, 11}), rule, std::span(kinds).first(11), scores.view().slice(0, 11));
    other.add(p.with_queries({11, kRows}), rule, std::span(kinds).subspan(11),
              scores.view().slice(11, kRows - 11));
    cut.join(other.state());
    for (int64_t r = 0; r < 2; ++r) {
        double tied = 0;
        for (int64_t i = 0; i < kRows; ++i) {
            if (i == 7) continue;
            std::vector<float> row(&scores(i, r, 0), &scores(i, r, 0) + 5);
            std::sort(row.rbegin(), row.rend());
            tied += row[1] == row[2] ? 1 : 0;
        }
        const auto n = static_cast<size_t>(r);
        EXPECT_EQ(whole.tied()[n], tied / (kRows - 1));
        EXPECT_EQ(cut.tied()[n], whole.tied()[n]);
        EXPECT_EQ(cut.tied_by_rounding()[n], whole.tied_by_rounding()[n]);
        EXPECT_EQ(cut.all_tied()[n], whole.all_tied()[n]);
        EXPECT_GT(tied, 0);
    }
    EXPECT_TRUE(std::isnan(TieMargin(1).tied()[0]));
}

/// q has norm 5, the keys 3, 2 and, in the other sequence, 1.
TEST(IndexScoreRounding, IsOfTheLargestKeySeen) {
    Problem p = square_problem(0, 1, 1, 16, 16, 8);
    p.batch = PackedBatch({0, 2, 3}, {0, 2, 3});
    p.index_scale_override = 0.5;
    Tensor<float, 3> q({3, 1, 16});
    Tensor<float, 2> k({3, 16});
    for (int64_t i = 0; i < 3; ++i) {
        q(i, 0, 3) = 3;
        q(i, 0, 4) = -4;
    }
    k(0, 0) = 3;
    k(1, 1) = -2;
    k(2, 2) = 1;
    const Tensor<double, 2> got = index_score_rounding(p, q, k);
    EXPECT_DOUBLE_EQ(got(0, 0), logit_bound(0.5, 5, 3, 16));
    EXPECT_DOUBLE_EQ(got(1, 0), logit_bound(0.5, 5, 3, 16));
    EXPECT_DOUBLE_EQ(got(2, 0), logit_bound(0.5, 5, 1, 16));
}

/// A float sum in any order is never off by more, and the sums that are written to files hardly
/// ever decide: of normal operands in bf16, whose rounding would decide in every second row.
TEST(IndexScoreRounding, HoldsForSumsInAnyOrderAndIsSmall) {
    constexpr int64_t kTokens = 512, kWidth = 64;
    Problem p = square_problem(kTokens, 1, 1, 16, kWidth, 8);
    Tensor<float, 3> q = test::normal<3>({kTokens, 1, kWidth}, 1);
    Tensor<float, 2> k = test::normal<2>({kTokens, kWidth}, 2);
    round_to(Element::bf16, {q.data(), static_cast<size_t>(q.size())});
    round_to(Element::bf16, {k.data(), static_cast<size_t>(k.size())});
    const Tensor<double, 2> bound = index_score_rounding(p, q, k);
    const auto scale = static_cast<float>(p.index_scale());
    double most = 0;
    Tensor<float, 3> scores({kTokens, 1, kTokens / 8});
    std::fill_n(scores.data(), scores.size(), -std::numeric_limits<float>::infinity());
    for (int64_t i = 0; i < kTokens; ++i)
        for (int64_t j = 0; j <= i; ++j) {
            double exact = 0;
            float up = 0, down = 0;
            for (int64_t d = 0; d < kWidth; ++d) {
                exact += double{q(i, 0, d)} * double{k(j, d)};
                up += q(i, 0, d) * k(j, d);
                down += q(i, 0, kWidth - 1 - d) * k(j, kWidth - 1 - d);
            }
            for (float sum : {up, down}) {
                const double off = std::fabs(exact * p.index_scale() - double{sum * scale});
                ASSERT_LE(off, bound(i, 0));
                most = std::max(most, off / bound(i, 0));
            }
            scores(i, 0, j / 8) = std::max(scores(i, 0, j / 8), up * scale);
        }
    EXPECT_GT(most, 0.002) << "nor is the bound without meaning";
    TieMargin ties(1);
    const SelectionRule rule{.top_k = 8};
    ties.add(p, rule, row_kinds(p, rule.top_k, false), scores, bound);
    EXPECT_LT(ties.tied_by_rounding()[0], 0.01);
}

}  // namespace
}  // namespace msa::analysis
