// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// Scores of a few levels, so that ties abound, with some NaN and -inf among the visible ones.
Tensor<float, 3> scores_with_ties(const Problem& p) {
    Tensor<float, 3> scores = normal<3>({p.queries(), p.kv_heads, p.blocks()}, 9);
    for (int64_t i = 0; i < scores.size(); ++i) {
        float& s = scores.data()[i];
        s = std::round(2 * s) / 2;  // also makes -0 and +0
        if (s > 1.9F) s = std::nanf("");
        if (s < -1.9F) s = kNothing;
    }
    return scores;
}

class SelectBlocks : public OperationTest {};
MSA_FOR_ALL_CASES(SelectBlocks);

TEST_P(SelectBlocks, IsExactlyTheRule) {
    for (const Tensor<float, 3>& scores :
         {scores_with_ties(problem()), reference().index_scores(problem(), operands_)}) {
        const Tensor<int32_t, 3> got = Runner(subject()).select_blocks(problem(), rule(), scores);
        EXPECT_TRUE(selection_follows(problem(), rule(), scores, got, 0)) << "seed " << seed();
        const Tensor<int32_t, 3> want = reference().select_blocks(problem(), rule(), scores);
        EXPECT_TRUE(identical(got, want)) << "seed " << seed();
    }
}

class SelectBlocksForms : public SubjectTest {
protected:
    /// The ids of a query that sees all of `blocks` blocks with these scores.
    std::vector<int32_t> row(std::vector<float> values, const SelectionRule& rule) {
        Problem p = square_problem(0, 1, 1, 16, 16, 8);
        const auto blocks = static_cast<int64_t>(values.size());
        p.batch = PackedBatch({0, 1}, {0, blocks * 8});
        const Tensor<int32_t, 3> ids =
            Runner(GetParam()).select_blocks(p, rule, {values.data(), {1, 1, blocks}});
        return {ids.data(), ids.data() + ids.size()};
    }
};
MSA_FOR_ALL_SUBJECTS(SelectBlocksForms);

using Ids = std::vector<int32_t>;

TEST_P(SelectBlocksForms, LocalBlockTakesOneOfTheSlots) {
    EXPECT_EQ(row({5, 1, 4, 3, -9}, {.top_k = 3}), (Ids{0, 2, 4}));
}
TEST_P(SelectBlocksForms, TiesGoToTheLowerId) {
    EXPECT_EQ(row({1, 2, 1, 2, 1, 0}, {.top_k = 4}), (Ids{0, 1, 3, 5}));
    EXPECT_EQ(row({-0.0F, 0.0F, -0.0F, 0.0F, 0}, {.top_k = 3}), (Ids{0, 1, 4}));
}
TEST_P(SelectBlocksForms, NanAndMinusInfinityAreNoCandidates) {
    EXPECT_EQ(row({std::nanf(""), 1, kNothing, 0, 7}, {.top_k = 5}), (Ids{1, 3, 4, -1, -1}));
    EXPECT_EQ(row({2, 1, 0, std::nanf("")}, {.top_k = 2}), (Ids{0, 3}));  // forced without a score
}
TEST_P(SelectBlocksForms, PositiveInfinityWins) {
    EXPECT_EQ(row({2, HUGE_VALF, 0, 0, 0}, {.top_k = 2}), (Ids{1, 4}));
}
TEST_P(SelectBlocksForms, ForcedFirstAndLocalComeBeforeScores) {
    const SelectionRule rule{.top_k = 4, .forced_local = 2, .forced_first = 1};
    EXPECT_EQ(row({0, 9, 8, 7, 1, 1}, rule), (Ids{0, 1, 4, 5}));
    EXPECT_EQ(row({0, 9, 8}, rule), (Ids{0, 1, 2, -1}));  // forced ranges meet
    EXPECT_EQ(row({3}, rule), (Ids{0, -1, -1, -1}));
}
TEST_P(SelectBlocksForms, ManyBlocksManySlots) {
    std::vector<float> values(5000);
    for (size_t b = 0; b < values.size(); ++b)
        values[b] = static_cast<float>((b * 2654435761U) % 4999);
    const SelectionRule rule{.top_k = 64};
    Problem p = square_problem(0, 1, 1, 16, 16, 8);
    p.batch = PackedBatch({0, 1}, {0, 40000});
    const View<const float, 3> scores(values.data(), {1, 1, 5000});
    const Ids got = row(values, rule);
    EXPECT_TRUE(selection_follows(p, rule, scores, {got.data(), {1, 1, 64}}, 0));
}

class IndexSelect : public OperationTest {};
MSA_FOR_ALL_CASES(IndexSelect);

TEST_P(IndexSelect, FollowsTheReferenceScores) {
    const Tensor<float, 3> scores = reference().index_scores(problem(), operands_);
    const Tensor<int32_t, 3> got = Runner(subject()).index_select(problem(), rule(), operands_);
    EXPECT_TRUE(
        selection_follows(problem(), rule(), scores, got, bounds(problem(), operands_).scores))
        << "seed " << seed();
}

TEST_P(IndexSelect, IsScoresThenSelection) {
    Runner runner(subject());
    const Tensor<float, 3> scores = runner.index_scores(problem(), operands_);
    const Tensor<int32_t, 3> want = runner.select_blocks(problem(), rule(), scores);
    const Tensor<int32_t, 3> got = runner.index_select(problem(), rule(), operands_);
    EXPECT_TRUE(identical(got, want));
    const Tensor<int32_t, 3> alone =
        Runner(subject(), 1).index_select(problem(), rule(), operands_);
    EXPECT_TRUE(identical(got, alone));
}

class TernaryOperands : public SubjectTest {
protected:
    /// The last queries of 2000 tokens, index and head dim alike: blocks of 128, 96 and 64 products
    /// of -1, 0 and 1, exact everywhere, of which many blocks have the same largest one.
    static Case of_dim(int64_t dim) {
        Problem p = square_problem(0, 2, 2, dim, dim, 16);
        p.batch = PackedBatch({0, 100}, {0, 2000});
        return {"ternary", p, {.top_k = 8}, Values::ternary};
    }
};
MSA_FOR_ALL_SUBJECTS(TernaryOperands);

/// Equal products have equal scores however their scale rounds.
TEST_P(TernaryOperands, SelectTheSameBlocksOnEveryBackend) {
    for (const int64_t dim : {128, 96, 64}) {
        const Case c = of_dim(dim);
        const Operands o = make_operands(c, GetParam().element);
        Runner truth = reference(), runner(GetParam());
        const Tensor<int32_t, 3> want = truth.index_select(c.problem, c.rule, o);
        EXPECT_TRUE(identical(runner.index_select(c.problem, c.rule, o), want)) << dim;
        const Tensor<float, 3> scores = runner.index_scores(c.problem, o);
        EXPECT_TRUE(identical(runner.select_blocks(c.problem, c.rule, scores), want)) << dim;
    }
}

TEST_P(TernaryOperands, OrderTokensAndOracleLogitsAlike) {
    for (const int64_t dim : {128, 96, 64}) {
        Case c = of_dim(dim);
        const Operands o = make_operands(c, GetParam().element);
        Runner truth = reference(), runner(GetParam());
        const auto by_logit = [&](Runner& of) {
            return of.select_blocks(c.problem, c.rule, of.block_mass(c.problem, o).max_logit);
        };
        EXPECT_TRUE(identical(by_logit(runner), by_logit(truth))) << dim;
        c.problem.block_size = 1;
        const Tensor<float, 3> got = runner.index_scores(c.problem, o);
        const Tensor<float, 3> of_tokens = truth.index_scores(c.problem, o);
        const auto rises = [](const Tensor<float, 3>& scores) {
            std::vector<int> signs;
            for (int64_t at = 1; at < scores.size(); ++at) {
                const float before = scores.data()[at - 1], now = scores.data()[at];
                signs.push_back(now > before ? 1 : now < before ? -1 : 0);
            }
            return signs;
        };
        EXPECT_TRUE(rises(got) == rises(of_tokens)) << dim;
    }
}

class SilentIndexer : public SubjectTest {};
MSA_FOR_ALL_SUBJECTS(SilentIndexer);

/// Queries whose index_q is 0 say nothing: all of their scores are 0, the oldest blocks and the own
/// one are kept, and each key has the same share. The others are as ever.
TEST_P(SilentIndexer, KeepsTheOldestBlocksAndItsOwn) {
    const Case c{"silent", square_problem(200, 16, 2, 64, 64, 32), {.top_k = 3}};
    const Problem& p = c.problem;
    Operands o = make_operands(c, GetParam().element);
    for (int64_t i = 1; i < p.queries(); i += 2)
        std::fill_n(&o.index_q(i, 0, 0), 2 * p.index_dim, 0.0F);
    Runner runner(GetParam());
    const Bounds b = bounds(p, o);
    const Tensor<float, 3> scores = runner.index_scores(p, o);
    const Selection got = runner.index_select_lse(p, c.rule, o);
    EXPECT_TRUE(identical(got.ids, runner.index_select(p, c.rule, o)));
    EXPECT_TRUE(selection_follows(p, c.rule, reference().index_scores(p, o), got.ids, b.scores));
    for (int64_t i = 1; i < p.queries(); i += 2)
        for (int64_t r = 0; r < 2; ++r) {
            const int64_t own = i / 32;
            const std::vector<int32_t> want =
                own < 3 ? std::vector<int32_t>{0, 1, 2}
                        : std::vector<int32_t>{0, 1, static_cast<int32_t>(own)};
            const std::span<const int32_t> kept = selected(got.ids, i, r);
            ASSERT_EQ(
                std::vector<int32_t>(kept.begin(), kept.end()),
                std::vector<int32_t>(want.begin(), want.begin() + std::min<int64_t>(3, own + 1)))
                << i;
            for (int64_t block = 0; block <= own; ++block) ASSERT_EQ(scores(i, r, block), 0) << i;
            const int64_t keys = own < 3 ? i + 1 : 64 + i % 32 + 1;
            ASSERT_NEAR(got.lse(i, r), std::log(static_cast<double>(keys)), b.index_lse) << i;
        }
}

}  // namespace
}  // namespace msa::test
