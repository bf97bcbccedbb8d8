// SPDX-License-Identifier: MIT
#include <cmath>

#include "core/gradient_tolerance.h"
#include "core/tolerance.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/softmax.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

const View<const int32_t, 3> kFullSupport;

/// Those that the subject takes.
std::vector<Teacher> teachers(Runner& runner, const Problem& p) {
    std::vector<Teacher> all{Teacher::mean, Teacher::max};
    std::erase_if(all, [&](Teacher teacher) {
        return !runner.backend()
                    .supports(p, IndexKlRequest{.element = runner.element(), .teacher = teacher})
                    .yes;
    });
    return all;
}

const char* name(Teacher teacher) { return teacher == Teacher::mean ? "mean" : "max"; }

class IndexKlTest : public OperationTest {};
MSA_FOR_ALL_CASES(IndexKlTest);
MSA_FOR_OWN_ATTENTION(IndexKlTest);

TEST_P(IndexKlTest, MatchesReferenceOnBothSupports) {
    const Tensor<int32_t, 3> ids = reference().index_select(problem(), rule(), operands_);
    Runner runner(subject());
    for (const View<const int32_t, 3>& support : {kFullSupport, ids.view()})
        for (Teacher teacher : teachers(runner, problem()))
            EXPECT_TRUE(matches(runner.index_kl(problem(), operands_, support, teacher),
                                reference().index_kl(problem(), operands_, support, teacher),
                                bounds(problem(), operands_, teacher)))
                << (support ? "selected" : "full") << " support, " << name(teacher) << ", seed "
                << seed();
}

TEST_P(IndexKlTest, ThreadsAndRerunsChangeNoBit) {
    const Tensor<int32_t, 3> ids = reference().index_select(problem(), rule(), operands_);
    Runner one(subject(), 1), three(subject(), 3);
    for (const View<const int32_t, 3>& support : {kFullSupport, ids.view()})
        for (Teacher teacher : teachers(one, problem())) {
            const IndexKl once = one.index_kl(problem(), operands_, support, teacher);
            const IndexKl again = three.index_kl(problem(), operands_, support, teacher);
            EXPECT_TRUE(identical(again.kl, once.kl)) << name(teacher);
            EXPECT_TRUE(identical(again.d_index_q, once.d_index_q)) << name(teacher);
            EXPECT_TRUE(identical(again.d_index_k, once.d_index_k)) << name(teacher);
        }
}

class IndexKlForms : public SubjectTest {};
MSA_FOR_ALL_SUBJECTS(IndexKlForms);

TEST_P(IndexKlForms, IsZeroWithZeroGradientWhereTheDistributionsAgree) {
    // One head per group and the index operands equal to the main ones: t = p.
    const Case c{"same", square_problem(40, 2, 2, 16, 16, 8), {.top_k = 2}};
    Operands o = make_operands(c, GetParam().element);
    std::copy_n(o.q.data(), o.q.size(), o.index_q.data());
    for (int64_t j = 0; j < 40; ++j)
        for (int64_t d = 0; d < 16; ++d) o.k(j, 0, d) = o.k(j, 1, d) = o.index_k(j, d);
    const Tensor<int32_t, 3> ids = reference().index_select(c.problem, c.rule, o);
    Runner runner(GetParam());
    const Bounds b = bounds(c.problem, o);
    for (const View<const int32_t, 3>& support : {kFullSupport, ids.view()}) {
        const IndexKl got = runner.index_kl(c.problem, o, support);
        for (int64_t i = 0; i < got.kl.size(); ++i) EXPECT_NEAR(got.kl.data()[i], 0, b.kl);
        for (int64_t i = 0; i < got.d_index_q.size(); ++i)
            EXPECT_NEAR(got.d_index_q.data()[i], 0, b.d_index_q);
        for (int64_t i = 0; i < got.d_index_k.size(); ++i)
            EXPECT_NEAR(got.d_index_k.data()[i], 0, b.d_index_k);
    }
}

TEST_P(IndexKlForms, TwoTokensByHand) {
    // Logits (0, ln 3) and (0, 0) of the two heads, softmax (1/4, 3/4) and (1/2, 1/2): the mean
    // is (3/8, 5/8), the maximum (1/2, 3/4) over 5/4. Index logits equal: t = (1/2, 1/2).
    Problem p = square_problem(2, 2, 1, 16, 16, 8);
    p.softmax_scale_override = std::log(3.0);
    p.index_scale_override = 1.0;
    const Case c{"two", p, {}};
    Operands o = make_operands(c, GetParam().element);
    for (Tensor<float, 3>* t : {&o.q, &o.k, &o.index_q}) std::fill_n(t->data(), t->size(), 0.0F);
    std::fill_n(o.index_k.data(), o.index_k.size(), 0.0F);
    o.q(1, 0, 0) = 1;
    o.k(1, 0, 0) = 1;
    o.index_q(1, 0, 0) = 2;
    Runner runner(GetParam());
    for (Teacher teacher : teachers(runner, p)) {
        const double first = teacher == Teacher::mean ? 3.0 / 8 : 2.0 / 5, second = 1 - first;
        const IndexKl got = runner.index_kl(p, o, kFullSupport, teacher);
        const Bounds b = bounds(p, o, teacher);
        EXPECT_NEAR(got.kl(0, 0), 0, b.kl);  // one visible key
        EXPECT_NEAR(got.kl(1, 0), first * std::log(2 * first) + second * std::log(2 * second), b.kl)
            << name(teacher);
        // d L / d index_k(j) = (t - p)_j * index_q / 2 rows.
        EXPECT_NEAR(got.d_index_k(0, 0), (0.5 - first) * 2 / 2, b.d_index_k) << name(teacher);
        EXPECT_NEAR(got.d_index_k(1, 0), (0.5 - second) * 2 / 2, b.d_index_k) << name(teacher);
    }
}

TEST_P(IndexKlForms, ANanOfAnyHeadIsSeen) {
    const Case c{"nan", square_problem(20, 4, 2, 16, 16, 8), {.top_k = 1}};
    Runner runner(GetParam());
    for (int64_t h : {2, 3})
        for (Teacher teacher : teachers(runner, c.problem)) {
            Operands o = make_operands(c, GetParam().element);
            o.q(7, h, 0) = std::nanf("");
            const IndexKl got = runner.index_kl(c.problem, o, kFullSupport, teacher);
            for (int64_t i = 0; i < 20; ++i)
                for (int64_t r = 0; r < 2; ++r)
                    EXPECT_EQ(std::isnan(got.kl(i, r)), i == 7 && r == 1) << name(teacher);
        }
}

TEST_P(IndexKlForms, RowsWithoutSupportAreZero) {
    Problem p = square_problem(0, 2, 1, 16, 16, 8);
    p.batch = PackedBatch({0, 5}, {0, 3});
    const Case c{"none", p, {.top_k = 2}};
    const Operands o = make_operands(c, GetParam().element);
    const IndexKl got = Runner(GetParam()).index_kl(p, o, kFullSupport);
    for (int64_t i = 0; i < 2; ++i) {
        EXPECT_EQ(got.kl(i, 0), 0);
        for (int64_t d = 0; d < 16; ++d) EXPECT_EQ(got.d_index_q(i, 0, d), 0.0F);
    }
}

/// Half of the queries have an index_q of 0: theirs is the divergence from n equal shares,
/// sum p log p + log n, and their gradient the teacher's pull away from these.
TEST_P(IndexKlForms, AnIndexerThatSaysNothingHasEqualShares) {
    const Case c{"silent", square_problem(100, 16, 2, 64, 64, 32), {.top_k = 2}};
    const Problem& p = c.problem;
    Operands o = make_operands(c, GetParam().element);
    for (int64_t i = 1; i < p.queries(); i += 2)
        std::fill_n(&o.index_q(i, 0, 0), 2 * p.index_dim, 0.0F);
    const Tensor<int32_t, 3> ids = reference().index_select(p, c.rule, o);
    Runner runner(GetParam());
    const Bounds b = bounds(p, o);
    for (const View<const int32_t, 3>& support : {kFullSupport, ids.view()}) {
        const IndexKl got = runner.index_kl(p, o, support);
        EXPECT_TRUE(matches(got, reference().index_kl(p, o, support), b));
        for (int64_t i = 1; i < p.queries(); i += 2)
            for (int64_t r = 0; r < 2; ++r) {
                std::vector<double> teacher(static_cast<size_t>(i + 1), 0.0);
                for (int64_t h = 8 * r; h < 8 * r + 8; ++h) {
                    const std::vector<double> head = softmax(p, o.q, o.k, support, i, h);
                    for (size_t j = 0; j < head.size(); ++j) teacher[j] += head[j] / 8;
                }
                double sum = 0, keys = 0;
                for (const double share : teacher) {
                    if (share == 0) continue;
                    sum += share * std::log(share);
                    ++keys;
                }
                ASSERT_NEAR(got.kl(i, r), sum + std::log(keys), b.kl) << i;
                for (int64_t d = 0; d < p.index_dim; d += 21) {
                    double slope = 0;
                    for (size_t j = 0; j < teacher.size(); ++j)
                        slope += (teacher[j] == 0 ? 0 : 1 / keys - teacher[j]) *
                                 double{o.index_k(static_cast<int64_t>(j), d)};
                    ASSERT_NEAR(got.d_index_q(i, r, d), slope * p.index_scale() / (2 * 100),
                                b.d_index_q)
                        << i;
                }
            }
    }
}

TEST_P(IndexKlForms, GradientIsTheFiniteDifferenceOfTheLoss) {
    const Case c{"differences", square_problem(36, 4, 2, 16, 16, 8), {.top_k = 2}};
    Operands o = make_operands(c, GetParam().element);
    const Tensor<int32_t, 3> ids = reference().index_select(c.problem, c.rule, o);
    Runner runner(GetParam());
    Runner truth = reference();  // its losses are good to double precision
    const Problem& p = c.problem;
    const double rows = static_cast<double>(p.queries() * p.kv_heads);
    for (const View<const int32_t, 3>& support : {kFullSupport, ids.view()})
        for (Teacher teacher : teachers(runner, p)) {
            const IndexKl got = runner.index_kl(p, o, support, teacher);
            const Bounds b = bounds(p, o, teacher);
            const auto difference = [&](float& element) {
                const float centre = element, step = 0x1p-6F;
                element = centre + step;
                const double up = truth.index_kl(p, o, support, teacher).mean(), above = element;
                element = centre - step;
                const double down = truth.index_kl(p, o, support, teacher).mean(), below = element;
                element = centre;
                return (up - down) / (above - below);
            };
            // A row's logits move by at most slope per unit of the element.
            const double step = 0x1p-6, slope_q = p.index_scale() * largest_norm<2>(o.index_k);
            const double slope_k = p.index_scale() * largest_norm<3>(o.index_q);
            for (int64_t at = 0; at < o.index_q.size(); at += 131)
                EXPECT_NEAR(got.d_index_q.data()[at], difference(o.index_q.data()[at]),
                            b.d_index_q + central_difference_bound(step, slope_q) / rows);
            for (int64_t at = 0; at < o.index_k.size(); at += 71)
                EXPECT_NEAR(got.d_index_k.data()[at], difference(o.index_k.data()[at]),
                            b.d_index_k + central_difference_bound(step, slope_k));
        }
}

TEST_P(IndexKlForms, SlotsThatExceedAnyBufferChangeNothing) {
    // 2048 slots a row, nearly all padding: score gradients of a few queries at a time.
    Problem p = square_problem(40, 4, 2, 16, 16, 256);
    p.batch = PackedBatch({0, 40}, {0, 600});
    const Case c{"slots", p, {.top_k = 2048}};
    const Operands o = make_operands(c, GetParam().element);
    Runner runner(GetParam());
    const Support support = runner.backend().supports(
        p, IndexKlRequest{.element = runner.element(), .top_k = c.rule.top_k});
    if (!support.yes) GTEST_SKIP() << support.why_not;
    Tensor<int32_t, 3> ids({p.queries(), 2, c.rule.top_k});
    std::fill_n(ids.data(), ids.size(), kNoBlock);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < 2; ++r) ids(i, r, 0) = static_cast<int32_t>((i + r) % 3);
    EXPECT_TRUE(matches(runner.index_kl(p, o, ids.view()), reference().index_kl(p, o, ids.view()),
                        bounds(p, o)))
        << "seed " << seed();
}

TEST_P(IndexKlForms, KeysOutsideTheSupportGetNoGradient) {
    const Case c{"outside", square_problem(64, 4, 2, 16, 16, 8), {.top_k = 1}};
    Operands o = make_operands(c, GetParam().element);
    Tensor<int32_t, 3> ids({64, 2, 1});
    std::fill_n(ids.data(), ids.size(), 0);  // every query selects block 0 alone
    for (int64_t j = 8; j < 64; ++j) {
        std::fill_n(o.index_k.view()[j].data(), 16, std::nanf(""));
        std::fill_n(o.k.view()[j].data(), 32, std::nanf(""));
    }
    const IndexKl got = Runner(GetParam()).index_kl(c.problem, o, ids.view());
    for (int64_t j = 0; j < 64; ++j)
        for (int64_t d = 0; d < 16; ++d) {
            EXPECT_TRUE(std::isfinite(got.d_index_k(j, d)));
            EXPECT_EQ(j >= 8, got.d_index_k(j, d) == 0.0F);
        }
}

}  // namespace
}  // namespace msa::test
