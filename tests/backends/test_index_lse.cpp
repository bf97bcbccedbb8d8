// SPDX-License-Identifier: MIT
// LSE fusion: what index_select and attention know of a row's sums, and index_kl from it.
#include <cmath>

#include "core/error.h"
#include "core/gradient_tolerance.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

/// The lse of both branches on the support of `rule`, or on the full one.
struct GivenSums {
    GivenSums(Runner& runner, const Problem& p, SelectionRule rule, const Operands& o, bool full) {
        if (full) rule.top_k = std::max<int64_t>(1, p.blocks());  // all visible blocks
        Selection selection = reference().index_select_lse(p, rule, o);
        request.index_lse = std::move(selection.lse);
        if (full) {
            request.main_lse = runner.dense_attention(p, o).lse;
        } else {
            chosen = std::move(selection.ids);
            request.main_lse = runner.sparse_attention(p, o, chosen).lse;
        }
    }
    View<const int32_t, 3> ids() const {
        return chosen.data() != nullptr ? chosen.view() : View<const int32_t, 3>();
    }
    Tensor<int32_t, 3> chosen;
    KlRequest request;
};

class IndexLseTest : public OperationTest {};
MSA_FOR_ALL_CASES(IndexLseTest);
MSA_FOR_OWN_ATTENTION(IndexLseTest);

TEST_P(IndexLseTest, IndexSelectGivesTheSumsOfItsBlocks) {
    Runner runner(subject());
    const Selection got = runner.index_select_lse(problem(), rule(), operands_);
    EXPECT_TRUE(identical(got.ids, runner.index_select(problem(), rule(), operands_)));
    // Ties may be broken otherwise by another backend: compare where the blocks are the same.
    const Selection want = reference().index_select_lse(problem(), rule(), operands_);
    if (identical(got.ids, want.ids)) {
        EXPECT_TRUE(close(got.lse, want.lse, bounds(problem(), operands_).index_lse));
    }
    const Selection again = Runner(subject(), 3).index_select_lse(problem(), rule(), operands_);
    EXPECT_TRUE(identical(again.lse, got.lse));
}

TEST_P(IndexLseTest, IndexKlFromGivenSumsMatchesReference) {
    Runner runner(subject()), three(subject(), 3);
    for (bool full : {true, false}) {
        const GivenSums support(runner, problem(), rule(), operands_, full);
        for (Teacher teacher : {Teacher::mean, Teacher::max}) {
            const IndexKlRequest asked{.element = runner.element(), .teacher = teacher};
            if (!runner.backend().supports(problem(), asked).yes) continue;
            if (full && teacher == Teacher::max) continue;  // test_index_kl has that pass
            const IndexKl got =
                runner.index_kl(problem(), operands_, support.ids(), teacher, support.request);
            EXPECT_TRUE(matches(got,
                                reference().index_kl(problem(), operands_, support.ids(), teacher),
                                bounds(problem(), operands_, teacher, true)))
                << (full ? "full" : "selected") << " support, seed " << seed();
            const IndexKl again =
                three.index_kl(problem(), operands_, support.ids(), teacher, support.request);
            EXPECT_TRUE(identical(again.kl, got.kl));
            EXPECT_TRUE(identical(again.d_index_q, got.d_index_q));
            EXPECT_TRUE(identical(again.d_index_k, got.d_index_k));
        }
    }
}

class IndexLseForms : public SubjectTest {
protected:
    Case case_{"given", square_problem(36, 4, 2, 16, 16, 8), {.top_k = 2}};
    Operands operands_ = make_operands(case_, GetParam().element);
    const Problem& problem() const { return case_.problem; }

    std::string refusal(Runner& runner, const GivenSums& support) {
        try {
            runner.index_kl(problem(), operands_, support.ids(), Teacher::mean, support.request);
        } catch (const InputError& error) {
            return error.what();
        }
        return "";
    }
};
MSA_FOR_ALL_SUBJECTS(IndexLseForms);

TEST_P(IndexLseForms, GradientsAreTheSameWithoutTheValueAndScaled) {
    Runner runner(GetParam());
    GivenSums support(runner, problem(), case_.rule, operands_, false);
    const auto run = [&] {
        return runner.index_kl(problem(), operands_, support.ids(), Teacher::mean, support.request);
    };
    const IndexKl both = run();
    support.request.value = false;
    const IndexKl alone = run();
    EXPECT_TRUE(identical(alone.d_index_q, both.d_index_q));
    EXPECT_TRUE(identical(alone.d_index_k, both.d_index_k));
    EXPECT_TRUE(std::isnan(alone.kl(0, 0)));  // the poison: nobody wrote there
    // The mean is over 72 rows.
    support.request.gradient_scale = 1.0 / 72 / 8;
    const IndexKl eighth = run();
    for (int64_t i = 0; i < both.d_index_q.size(); ++i)
        EXPECT_NEAR(eighth.d_index_q.data()[i] * 8, both.d_index_q.data()[i],
                    4 * kRoundoff * std::fabs(both.d_index_q.data()[i]));
    for (int64_t i = 0; i < both.d_index_k.size(); ++i)
        EXPECT_NEAR(eighth.d_index_k.data()[i] * 8, both.d_index_k.data()[i],
                    4 * kRoundoff * std::fabs(both.d_index_k.data()[i]));
}

TEST_P(IndexLseForms, GradientFromGivenSumsIsTheFiniteDifference) {
    Runner runner(GetParam());
    Runner truth = reference();
    for (bool full : {true, false}) {
        const GivenSums support(runner, problem(), case_.rule, operands_, full);
        const IndexKl got =
            runner.index_kl(problem(), operands_, support.ids(), Teacher::mean, support.request);
        const Bounds b = bounds(problem(), operands_, Teacher::mean, true);
        const double step = 0x1p-6;
        const auto difference = [&](float& element) {
            const float centre = element;
            element = centre + static_cast<float>(step);
            const double up = truth.index_kl(problem(), operands_, support.ids()).mean();
            const double above = element;
            element = centre - static_cast<float>(step);
            const double down = truth.index_kl(problem(), operands_, support.ids()).mean();
            const double below = element;
            element = centre;
            return (up - down) / (above - below);
        };
        const double slope_q = problem().index_scale() * largest_norm<2>(operands_.index_k);
        const double slope_k = problem().index_scale() * largest_norm<3>(operands_.index_q);
        for (int64_t at = 0; at < operands_.index_q.size(); at += 131)
            EXPECT_NEAR(got.d_index_q.data()[at], difference(operands_.index_q.data()[at]),
                        b.d_index_q + central_difference_bound(step, slope_q) / 72);
        for (int64_t at = 0; at < operands_.index_k.size(); at += 71)
            EXPECT_NEAR(got.d_index_k.data()[at], difference(operands_.index_k.data()[at]),
                        b.d_index_k + central_difference_bound(step, slope_k));
    }
}

TEST_P(IndexLseForms, SinksThatTakeNearlyAllHideNoTeacher) {
    // With lse' = sink in float, what the sinks leave cannot be told from lse' alone.
    Runner runner(GetParam());
    for (float sink : {1.0F, 8.0F, 30.0F}) {
        operands_.sinks = Tensor<float, 1>({4});
        std::fill_n(operands_.sinks.data(), 4, sink);
        for (bool full : {true, false}) {
            const GivenSums support(runner, problem(), case_.rule, operands_, full);
            EXPECT_TRUE(matches(runner.index_kl(problem(), operands_, support.ids(), Teacher::mean,
                                                support.request),
                                reference().index_kl(problem(), operands_, support.ids()),
                                bounds(problem(), operands_, Teacher::mean, true)))
                << "sinks " << sink;
        }
    }
}

TEST_P(IndexLseForms, RowsWithoutKeysAreZero) {
    Problem p = square_problem(0, 2, 1, 16, 16, 8);
    p.batch = PackedBatch({0, 5}, {0, 3});
    const Case c{"none", p, {.top_k = 2}};
    const Operands o = make_operands(c, GetParam().element);
    Runner runner(GetParam());
    for (bool full : {true, false}) {
        const GivenSums support(runner, p, c.rule, o, full);
        EXPECT_EQ(support.request.index_lse(0, 0), -HUGE_VALF);
        const IndexKl got = runner.index_kl(p, o, support.ids(), Teacher::mean, support.request);
        for (int64_t i = 0; i < 2; ++i) {
            EXPECT_EQ(got.kl(i, 0), 0);
            for (int64_t d = 0; d < 16; ++d) EXPECT_EQ(got.d_index_q(i, 0, d), 0.0F);
        }
    }
}

TEST_P(IndexLseForms, ANanThatARowSeesIsNoFault) {
    operands_.q(7, 2, 0) = std::nanf("");
    Runner runner(GetParam());
    const GivenSums support(runner, problem(), case_.rule, operands_, true);
    const IndexKl got =
        runner.index_kl(problem(), operands_, support.ids(), Teacher::mean, support.request);
    for (int64_t i = 0; i < 36; ++i)
        for (int64_t r = 0; r < 2; ++r) EXPECT_EQ(std::isnan(got.kl(i, r)), i == 7 && r == 1);
}

TEST_P(IndexLseForms, ARowWithoutATeacherHasNoPartInTheGradient) {
    // The window of the last query ends before its one block, and its index_q is NaN.
    case_.problem.window = 4;
    case_.rule.top_k = 1;
    Runner runner(GetParam());
    GivenSums support(runner, problem(), case_.rule, operands_, false);
    support.chosen(35, 0, 0) = 0;
    operands_.index_q(35, 0, 3) = std::nanf("");
    support.request = {};
    const IndexKl got = runner.index_kl(problem(), operands_, support.ids());
    EXPECT_EQ(got.kl(35, 0), 0);
    for (int64_t d = 0; d < 16; ++d) {
        EXPECT_EQ(got.d_index_q(35, 0, d), 0);
        for (int64_t j = 0; j < 36; ++j) EXPECT_TRUE(std::isfinite(got.d_index_k(j, d)));
    }
}

TEST_P(IndexLseForms, ShapesAreNamed) {
    Runner runner(GetParam());
    GivenSums support(runner, problem(), case_.rule, operands_, true);
    support.request.main_lse = Tensor<float, 2>({36, 2});
    EXPECT_EQ(refusal(runner, support), "main_lse has shape [36, 2], must be [Nq, Hq] = [36, 4]");
    support = GivenSums(runner, problem(), case_.rule, operands_, true);
    support.request.index_lse = Tensor<float, 2>({36, 4});
    EXPECT_EQ(refusal(runner, support), "index_lse has shape [36, 4], must be [Nq, Hkv] = [36, 2]");
    support = GivenSums(runner, problem(), case_.rule, operands_, true);
    support.request.gradient_scale = HUGE_VAL;
    EXPECT_EQ(refusal(runner, support), "gradient_scale is inf, must be finite");
}

TEST_P(IndexLseForms, SumsOfAnotherInputAreRefused) {
    Runner runner(GetParam());
    if (runner.backend().space() != Space::host) GTEST_SKIP() << "not looked at on a device";
    const auto starts = [&](float wrong, int64_t i, bool main, bool full) {
        GivenSums support(runner, problem(), case_.rule, operands_, full);
        (main ? support.request.main_lse : support.request.index_lse)(i, 1) = wrong;
        return refusal(runner, support);
    };
    for (bool full : {true, false}) {
        EXPECT_EQ(starts(std::nanf(""), 9, true, full).substr(0, 29),
                  "main_lse[9, 1] is nan, must b");
        EXPECT_EQ(starts(-HUGE_VALF, 9, false, full).substr(0, 30),
                  "index_lse[9, 1] is -inf, must ");
        EXPECT_EQ(starts(99, 35, false, full).substr(0, 27), "index_lse[35, 1] is 99, mus");
    }
    operands_.q(35, 3, 0) += 1;  // the last row of another q
    GivenSums other(runner, problem(), case_.rule, operands_, true);
    operands_.q(35, 3, 0) -= 1;
    EXPECT_NE(refusal(runner, other).find("it is not of this input"), std::string::npos);
}

TEST_P(IndexLseForms, ARowWithoutKeysHasNone) {
    Problem p = square_problem(0, 2, 1, 16, 16, 8);
    p.batch = PackedBatch({0, 5}, {0, 3});
    case_ = {"none", p, {.top_k = 2}};
    operands_ = make_operands(case_, GetParam().element);
    Runner runner(GetParam());
    if (runner.backend().space() != Space::host) GTEST_SKIP() << "not looked at on a device";
    GivenSums support(runner, p, case_.rule, operands_, false);
    support.request.index_lse(1, 0) = 0;
    EXPECT_EQ(refusal(runner, support), "index_lse[1, 0] is 0, must be -inf: the row sees no key");
}

}  // namespace
}  // namespace msa::test
