// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>

#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

class DenseAttention : public OperationTest {};
MSA_FOR_ALL_CASES(DenseAttention);
MSA_FOR_OWN_ATTENTION(DenseAttention);

TEST_P(DenseAttention, MatchesReference) {
    const Attention want = reference().dense_attention(problem(), operands_);
    const Attention got = Runner(subject()).dense_attention(problem(), operands_);
    EXPECT_TRUE(matches(got, want, bounds(problem(), operands_))) << "seed " << seed();
}

TEST_P(DenseAttention, InvisibleKeysHaveNoInfluence) {
    Runner runner(subject());
    const Attention clean = runner.dense_attention(problem(), operands_);
    // Poison every key that no query sees.
    std::vector<bool> seen(static_cast<size_t>(problem().keys()), false);
    for (const KeyRange& range : visible_keys(problem()))
        for (int64_t j = problem().window_start(range.count); j < range.count; ++j)
            seen[static_cast<size_t>(range.first + j)] = true;
    for (int64_t j = 0; j < problem().keys(); ++j)
        if (!seen[static_cast<size_t>(j)])
            for (Tensor<float, 3>* t : {&operands_.k, &operands_.v})
                std::fill_n(t->view()[j].data(), t->view()[j].size(), std::nanf(""));
    const Attention poisoned = runner.dense_attention(problem(), operands_);
    EXPECT_TRUE(identical(poisoned.out, clean.out));
    EXPECT_TRUE(identical(poisoned.lse, clean.lse));
}

TEST_P(DenseAttention, ThreadsAndRerunsChangeNoBit) {
    const Attention once = Runner(subject(), 1).dense_attention(problem(), operands_);
    Runner three(subject(), 3);
    for (int rerun = 0; rerun < 2; ++rerun) {
        const Attention again = three.dense_attention(problem(), operands_);
        EXPECT_TRUE(identical(again.out, once.out));
        EXPECT_TRUE(identical(again.lse, once.lse));
    }
}

class DenseAttentionForms : public SubjectTest {};
MSA_FOR_ALL_SUBJECTS(DenseAttentionForms);

TEST_P(DenseAttentionForms, OneVisibleKeyReturnsItsValue) {
    const Case one{"one", square_problem(1, 4, 2, 16, 16, 8), {}};
    const Operands o = make_operands(one, GetParam().element);
    const Attention got = Runner(GetParam()).dense_attention(one.problem, o);
    for (int64_t h = 0; h < 4; ++h) {
        double logit = 0;
        for (int64_t d = 0; d < 16; ++d) {
            EXPECT_EQ(got.out(0, h, d), o.v(0, h / 2, d));
            logit += double{o.q(0, h, d)} * double{o.k(0, h / 2, d)} / 4;
        }
        EXPECT_NEAR(got.lse(0, h), logit, bounds(one.problem, o).lse);
    }
}

TEST_P(DenseAttentionForms, EqualScoresAverageTheValues) {
    Case c{"equal", square_problem(37, 2, 1, 16, 16, 8), {}, Values::equal};
    Operands o = make_operands(c, GetParam().element);
    // Every value of key j is j, exact in bf16; the mean over keys 0 to i is i/2.
    for (int64_t j = 0; j < 37; ++j)
        for (int64_t d = 0; d < 16; ++d) o.v(j, 0, d) = static_cast<float>(j);
    const Attention got = Runner(GetParam()).dense_attention(c.problem, o);
    const double logit = 16 * 0.25 / 4;
    for (int64_t i = 0; i < 37; ++i) {
        EXPECT_NEAR(got.out(i, 1, 5), static_cast<double>(i) / 2, bounds(c.problem, o).out);
        EXPECT_NEAR(got.lse(i, 1), logit + std::log(static_cast<double>(i + 1)),
                    bounds(c.problem, o).lse);
    }
}

TEST_P(DenseAttentionForms, FutureNanChangesNothingAndVisibleNanSpreads) {
    const Case c{"nan", square_problem(40, 4, 2, 16, 16, 8), {}};
    Operands o = make_operands(c, GetParam().element);
    Runner runner(GetParam());
    const Attention clean = runner.dense_attention(c.problem, o);
    o.k(25, 0, 3) = std::nanf("");
    o.v(25, 0, 3) = std::nanf("");
    const Attention got = runner.dense_attention(c.problem, o);
    for (int64_t i = 0; i < 40; ++i)
        for (int64_t h = 0; h < 4; ++h) {
            const bool affected = i >= 25 && h < 2;  // group 0 only
            EXPECT_EQ(std::isnan(got.lse(i, h)), affected) << i << ' ' << h;
            EXPECT_EQ(std::isnan(got.out(i, h, 3)), affected) << i << ' ' << h;
            if (!affected) {
                EXPECT_EQ(got.out(i, h, 7), clean.out(i, h, 7));
            }
        }
}

TEST_P(DenseAttentionForms, QueriesSeeingNothingGiveZeroAndMinusInfinity) {
    Problem p = square_problem(0, 2, 1, 16, 16, 8);
    p.batch = PackedBatch({0, 5}, {0, 3});
    const Case c{"none", p, {}};
    const Attention got =
        Runner(GetParam()).dense_attention(p, make_operands(c, GetParam().element));
    for (int64_t i = 0; i < 2; ++i) {
        EXPECT_EQ(got.lse(i, 0), -std::numeric_limits<float>::infinity());
        EXPECT_EQ(got.out(i, 0, 4), 0.0F);
    }
    EXPECT_TRUE(std::isfinite(got.lse(2, 0)));
}

TEST_P(DenseAttentionForms, ThreadsThatShareOutSmallerTilesChangeNoBit) {
    // The cpu backend has large tiles as long as every thread gets some: one thread does here.
    const Case c{"tiles", square_problem(700, 12, 3, 32, 16, 16), {}};
    const Operands o = make_operands(c, GetParam().element);
    const Attention one = Runner(GetParam(), 1).dense_attention(c.problem, o);
    const Attention four = Runner(GetParam(), 4).dense_attention(c.problem, o);
    EXPECT_TRUE(identical(four.out, one.out));
    EXPECT_TRUE(identical(four.lse, one.lse));
}

TEST_P(DenseAttentionForms, SlicesOfTheQueriesGiveTheirRows) {
    const Case c{"slice", square_problem(90, 4, 2, 32, 16, 16), {}};
    const Operands o = make_operands(c, GetParam().element);
    Runner runner(GetParam());
    const Attention whole = runner.dense_attention(c.problem, o);
    const QueryRange range{33, 71};
    const Attention part =
        runner.dense_attention(c.problem.with_queries(range), with_queries(o, range));
    const View<const float, 3> rows = View<const float, 3>(whole.out.view()).slice(33, 38);
    EXPECT_TRUE((close<float, 3>(part.out.view(), rows, bounds(c.problem, o).out)));
}

}  // namespace
}  // namespace msa::test
