// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>

#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

class IndexScores : public OperationTest {};
MSA_FOR_ALL_CASES(IndexScores);

TEST_P(IndexScores, MatchesReference) {
    const Tensor<float, 3> want = reference().index_scores(problem(), operands_);
    const Tensor<float, 3> got = Runner(subject()).index_scores(problem(), operands_);
    EXPECT_TRUE(close(got, want, bounds(problem(), operands_).scores)) << "seed " << seed();
}

TEST_P(IndexScores, ThreadsAndRerunsChangeNoBit) {
    const Tensor<float, 3> once = Runner(subject(), 1).index_scores(problem(), operands_);
    Runner three(subject(), 3);
    for (int rerun = 0; rerun < 2; ++rerun)
        EXPECT_TRUE(identical(three.index_scores(problem(), operands_), once));
}

/// Blocks shorter than any other operation takes; of one token, the score is its product.
TEST_P(IndexScores, SmallBlocksMatchReference) {
    for (const int64_t block_size : {1, 3}) {
        Problem p = problem();
        p.block_size = block_size;
        EXPECT_TRUE(close(Runner(subject()).index_scores(p, operands_),
                          reference().index_scores(p, operands_), bounds(p, operands_).scores))
            << "seed " << seed() << ", block size " << block_size;
    }
}

class IndexScoresForms : public SubjectTest {};
MSA_FOR_ALL_SUBJECTS(IndexScoresForms);

TEST_P(IndexScoresForms, MaximumOverTheVisibleTokensOfEachBlock) {
    // index_q = (1, 0, ...), index_k of token j = (value_j, 0, ...): the score is value_j / 4.
    const Case c{"ramp", square_problem(20, 2, 2, 16, 16, 8), {}};
    Operands o = make_operands(c, GetParam().element);
    std::fill_n(o.index_q.data(), o.index_q.size(), 0.0F);
    std::fill_n(o.index_k.data(), o.index_k.size(), 0.0F);
    for (int64_t i = 0; i < 20; ++i) {
        o.index_q(i, 0, 0) = 1;
        o.index_q(i, 1, 0) = -1;
        o.index_k(i, 0) = static_cast<float>(i);
    }
    const Tensor<float, 3> got = Runner(GetParam()).index_scores(c.problem, o);
    const float nothing = -std::numeric_limits<float>::infinity();
    // Query 11 sees tokens 0-11: block 0 whole, block 1 up to token 11, block 2 not.
    EXPECT_EQ(got(11, 0, 0), 7.0F / 4);
    EXPECT_EQ(got(11, 0, 1), 11.0F / 4);
    EXPECT_EQ(got(11, 0, 2), nothing);
    EXPECT_EQ(got(11, 1, 0), 0.0F);
    EXPECT_EQ(got(11, 1, 1), -8.0F / 4);
    EXPECT_EQ(got(0, 0, 0), 0.0F);
    EXPECT_EQ(got(0, 0, 1), nothing);
}

TEST_P(IndexScoresForms, NanMarksItsBlockForThoseWhoSeeIt) {
    const Case c{"nan", square_problem(24, 2, 2, 16, 16, 8), {}};
    Operands o = make_operands(c, GetParam().element);
    o.index_k(10, 3) = std::nanf("");
    const Tensor<float, 3> got = Runner(GetParam()).index_scores(c.problem, o);
    for (int64_t i = 0; i < 24; ++i)
        for (int64_t b = 0; b < 3; ++b)
            EXPECT_EQ(std::isnan(got(i, 1, b)), b == 1 && i >= 10) << i << ' ' << b;
}

}  // namespace
}  // namespace msa::test
