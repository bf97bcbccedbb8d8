// SPDX-License-Identifier: MIT
// index_select with an int8 copy of index_k: the ids are those without it, on every backend.
#include <cmath>
#include <limits>

#include "tests/support/compare.h"
#include "tests/support/hidden_score.h"
#include "tests/support/random.h"
#include "tests/support/runner.h"

namespace msa::test {
namespace {

class CoarseIndex : public OperationTest {};
MSA_FOR_ALL_CASES(CoarseIndex);

TEST_P(CoarseIndex, IdsAreThoseOfTheOperands) {
    Runner runner(subject());
    const Tensor<int32_t, 3> want = runner.index_select(problem(), rule(), operands_);
    EXPECT_TRUE(identical(runner.index_select_coarse(problem(), rule(), operands_), want))
        << "seed " << seed();
    EXPECT_TRUE(identical(runner.index_select_coarse(problem(), rule(), operands_), want));
}

TEST_P(CoarseIndex, AndWhereValuesAreNotFinite) {
    const int64_t width = problem().index_dim;
    for (int64_t i = 0; i < operands_.index_q.size() / width; i += 13)
        operands_.index_q.data()[i * width + 3] = std::nanf("");
    for (int64_t j = 0; j < operands_.index_k.extent(0); j += 29)
        operands_.index_k(j, 1) =
            j % 2 == 0 ? std::nanf("") : std::numeric_limits<float>::infinity();
    Runner runner(subject());
    EXPECT_TRUE(identical(runner.index_select_coarse(problem(), rule(), operands_),
                          runner.index_select(problem(), rule(), operands_)))
        << "seed " << seed();
}

class CoarseIndexForms : public SubjectTest {};
MSA_FOR_ALL_SUBJECTS(CoarseIndexForms);

TEST_P(CoarseIndexForms, FindsAScoreThatInt8Loses) {
    const Problem p = hidden_score_problem();
    const Operands o = hidden_score(p);
    Runner runner(GetParam());
    const Tensor<int32_t, 3> ids = runner.index_select_coarse(p, {.top_k = 4}, o);
    for (int64_t r = 0; r < 2; ++r) {
        const int64_t last = p.queries() - 1;
        EXPECT_EQ(ids(last, r, 0), 5);
        EXPECT_EQ(ids(last, r, 1), 21);
        EXPECT_EQ(ids(last, r, 2), 37);
        EXPECT_EQ(ids(last, r, 3), 47);
    }
    EXPECT_TRUE(identical(ids, reference().index_select(p, {.top_k = 4}, o)));
}

/// Scales far from 1 would overflow or lose a bound.
TEST_P(CoarseIndexForms, AnyIndexScale) {
    Problem p = hidden_score_problem();
    const Operands o = hidden_score(p);
    Runner runner(GetParam());
    for (const double scale : {1.0, 1e-12, 1e12}) {
        p.index_scale_override = scale;
        const SelectionRule rule{.top_k = 5, .forced_local = 2, .forced_first = 1};
        EXPECT_TRUE(
            identical(runner.index_select_coarse(p, rule, o), runner.index_select(p, rule, o)))
            << scale;
    }
}

}  // namespace
}  // namespace msa::test
