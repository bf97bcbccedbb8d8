// SPDX-License-Identifier: MIT
// The loss of DSA's lightning indexer and its gradient: the reference by finite differences and,
// where both are one, by the KL of the Index Branch; the fast form by the reference.
#include <cmath>

#include "core/gradient_tolerance.h"
#include "core/indexer/lightning_kl.h"
#include "core/reference/reference_backend.h"
#include "tests/core/indexer/kl_differences.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

/// Operands of the indexer, and results.
struct Indexer {
    Tensor<float, 3> q;
    Tensor<float, 2> k, w;

    Indexer(const Problem& p, int64_t heads)
        : q(normal<3>({p.queries(), heads, p.index_dim}, 11)),
          k(normal<2>({p.keys(), p.index_dim}, 12)),
          w(normal<2>({p.queries(), heads}, 13)) {}
    LightningInput input() const { return {q.view(), k.view(), w.view()}; }
};

struct Result {
    Tensor<double, 2> kl;
    Tensor<double, 1> entropy;
    Tensor<float, 3> d_q;
    Tensor<float, 2> d_k, d_w;

    Result(const Problem& p, const Indexer& of)
        : kl({p.queries(), p.kv_heads}),
          entropy({p.queries()}),
          d_q(of.q.shape()),
          d_k(of.k.shape()),
          d_w(of.w.shape()) {}
    LightningKlOutput output() {
        return {kl.view(), entropy.view(), d_q.view(), d_k.view(), d_w.view()};
    }
};

LightningKlInput input(const Operands& o, const Indexer& indexer, View<const int32_t, 3> ids,
                       Teacher teacher) {
    return {indexer.input(), o.q.view(), o.k.view(), ids, teacher, o.sinks.view()};
}

Result reference_of(const Problem& p, const LightningKlInput& in, const Indexer& indexer) {
    Result result(p, indexer);
    reference::lightning_kl(p, in, result.output());
    return result;
}

Result fast(const Problem& p, const LightningKlInput& in, const Indexer& indexer, int threads = 2) {
    Result result(p, indexer);
    lightning_kl(p, in, result.output(), threads);
    return result;
}

/// The same blocks for all groups: those of group 0.
Tensor<int32_t, 3> one_choice(const Case& c, const Operands& o) {
    Tensor<int32_t, 3> ids = reference().index_select(c.problem, c.rule, o);
    for (int64_t i = 0; i < ids.extent(0); ++i)
        for (int64_t r = 1; r < ids.extent(1); ++r)
            std::copy_n(ids.view()[i][0].data(), ids.extent(2), ids.view()[i][r].data());
    return ids;
}

template <int Rank>
double largest_size(const Tensor<float, Rank>& values) {
    double most = 0;
    for (int64_t n = 0; n < values.size(); ++n)
        if (!std::isnan(values.data()[n]))
            most = std::max(most, std::fabs(double{values.data()[n]}));
    return most;
}

struct Bounds {
    double kl, entropy, d_q, d_k, d_w;
};

Bounds bounds_of(const Problem& p, const Operands& o, const Indexer& x, Teacher teacher) {
    double keys = 1;
    for (const KeyRange& seen : visible_keys(p))
        keys = std::max(keys, static_cast<double>(seen.count));
    const auto heads = static_cast<double>(x.w.extent(1));
    const double scale = x.input().scale(), weight = largest_size(x.w),
                 rows = std::max(1.0, static_cast<double>(p.queries()));
    const double q = largest_norm<3>(x.q), k = largest_norm<2>(x.k);
    const double size = scale * heads * weight * q * k + std::log(keys);
    const double index = lightning_bound(scale, heads * weight, q, k, p.index_dim, x.w.extent(1)) +
                         stored_lse_bound(size);
    const test::Bounds main = bounds(p, o, teacher);
    const bool sinks = o.sinks.data() != nullptr;
    const double main_size =
        std::max(p.softmax_scale() * largest_norm<3>(o.q) * largest_norm<3>(o.k),
                 sinks ? largest_size<1>(o.sinks) : 0.0) +
        std::log(keys + 1);
    const double logit = main_logit_bound(p, largest_norm<3>(o.q), largest_norm<3>(o.k)) +
                         stored_lse_bound(main_size) + (sinks ? main.lse : 0);
    const TeacherBound target = teacher_bound(logit, keys, p.group_size(), teacher);
    const double of_heads = sinks ? std::log(static_cast<double>(p.group_size())) : 0;
    const double of_query = kl_gradient_bound(target, index, keys, scale * weight, k, 1, rows);
    return {
        .kl = kl_bound(target, index, keys, 2 * (main_size + size) + of_heads),
        .entropy = 2 * index + (weight_bound(index, keys) + gamma(keys + 3)) * size,
        .d_q = of_query,
        .d_k = kl_gradient_bound(target, index, keys, scale * weight, q, rows * heads, rows),
        .d_w = kl_gradient_bound(target, index, keys, scale, q * k, 1, rows) +
               2 * gamma(static_cast<double>(p.index_dim) + 3) * scale * q * k / rows,
    };
}

testing::AssertionResult matches(const Result& got, const Result& want, const Bounds& b) {
    if (auto same = close(got.kl, want.kl, b.kl); !same) return same << " (kl)";
    if (auto same = close(got.entropy, want.entropy, b.entropy); !same) return same << " (entropy)";
    if (auto same = close(got.d_q, want.d_q, b.d_q); !same) return same << " (d_q)";
    if (auto same = close(got.d_k, want.d_k, b.d_k); !same) return same << " (d_k)";
    return close(got.d_w, want.d_w, b.d_w) << " (d_w)";
}

class LightningKl : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, LightningKl, testing::ValuesIn(cases()),
                         [](const auto& c) { return c.param.name; });
INSTANTIATE_TEST_SUITE_P(OwnAttention, LightningKl, testing::ValuesIn(cases(kOwnAttention)),
                         [](const auto& c) { return c.param.name; });

TEST_P(LightningKl, FastMatchesReferenceOnBothSupports) {
    const Case& c = GetParam();
    const Operands o = make_operands(c, Element::f32);
    const Tensor<int32_t, 3> ids = one_choice(c, o);
    for (int64_t heads : {1, 3}) {
        const Indexer indexer(c.problem, heads);
        for (const View<const int32_t, 3>& support : {View<const int32_t, 3>(), ids.view()})
            for (Teacher teacher : {Teacher::mean, Teacher::max}) {
                const LightningKlInput in = input(o, indexer, support, teacher);
                EXPECT_TRUE(matches(fast(c.problem, in, indexer),
                                    reference_of(c.problem, in, indexer),
                                    bounds_of(c.problem, o, indexer, teacher)))
                    << heads << " heads, " << (support ? "selected" : "full") << " support, "
                    << (teacher == Teacher::mean ? "mean" : "max") << ", seed " << seed();
            }
    }
}

const Case kSmall{"small", square_problem(70, 4, 2, 16, 16, 8), {.top_k = 3}};

TEST(LightningKlForms, ThreadsChangeNoBit) {
    const Case c{"long", square_problem(1500, 2, 1, 16, 16, 8), {.top_k = 9}};
    const Operands o = make_operands(c, Element::f32);
    const Tensor<int32_t, 3> ids = one_choice(c, o);
    const Indexer indexer(c.problem, 2);
    for (const View<const int32_t, 3>& support : {View<const int32_t, 3>(), ids.view()}) {
        const LightningKlInput in = input(o, indexer, support, Teacher::mean);
        const Result one = fast(c.problem, in, indexer, 1), three = fast(c.problem, in, indexer, 3);
        EXPECT_TRUE(identical(one.kl, three.kl));
        EXPECT_TRUE(identical(one.d_q, three.d_q));
        EXPECT_TRUE(identical(one.d_k, three.d_k));
        EXPECT_TRUE(identical(one.d_w, three.d_w));
        EXPECT_TRUE(matches(one, reference_of(c.problem, in, indexer),
                            bounds_of(c.problem, o, indexer, Teacher::mean)));
    }
}

/// The gradient of index_q, index_k and w against differences of the loss.
TEST(LightningKlForms, ReferenceIsTheFiniteDifference) {
    const Problem& p = kSmall.problem;
    const Operands o = make_operands(kSmall, Element::f32);
    const Tensor<int32_t, 3> ids = one_choice(kSmall, o);
    Indexer x(p, 3);
    const LightningKlInput in = input(o, x, ids.view(), Teacher::mean);
    const Result at = reference_of(p, in, x);
    const double scale = x.input().scale();
    const double q_max = largest_size(x.q), k_max = largest_size(x.k), w_max = largest_size(x.w);
    KlDifferences by(
        0x1p-9F, [&] { return reference_of(p, in, x).kl; },
        [&] { return product_signs(x.q, x.k, 1); });
    for (int64_t at_value = 5; at_value < x.w.size(); at_value += 61)
        by.expect(x.w.data()[at_value], at.d_w.data()[at_value], scale * 16 * q_max * k_max);
    for (int64_t at_value = 5; at_value < x.q.size(); at_value += 311)
        by.expect(x.q.data()[at_value], at.d_q.data()[at_value], scale * w_max * k_max);
    for (int64_t at_value = 5; at_value < x.k.size(); at_value += 131)
        by.expect(x.k.data()[at_value], at.d_k.data()[at_value], 3 * scale * w_max * q_max,
                  static_cast<double>(p.queries()));
    EXPECT_GT(by.compared(), 15);
}

/// One group, one head of weight 1 and products above 0: the score is the Index Branch's.
TEST(LightningKlForms, OneHeadWithoutNegativeProductsIsTheIndexBranch) {
    const Case c{"one", square_problem(60, 2, 1, 16, 16, 8), {.top_k = 3}};
    Operands o = make_operands(c, Element::f32);
    Indexer x(c.problem, 1);
    for (Tensor<float, 3>* q : {&o.index_q, &x.q})
        for (int64_t n = 0; n < q->size(); ++n) q->data()[n] = std::fabs(x.q.data()[n]);
    for (int64_t n = 0; n < x.k.size(); ++n)
        x.k.data()[n] = o.index_k.data()[n] = std::fabs(x.k.data()[n]);
    std::fill_n(x.w.data(), x.w.size(), 1.0F);
    const Tensor<int32_t, 3> ids = one_choice(c, o);
    for (Teacher teacher : {Teacher::mean, Teacher::max})
        for (const View<const int32_t, 3>& support : {View<const int32_t, 3>(), ids.view()}) {
            const Result got = reference_of(c.problem, input(o, x, support, teacher), x);
            const IndexKl want = reference().index_kl(c.problem, o, support, teacher);
            EXPECT_TRUE(close(got.kl, want.kl, 1e-12));
            EXPECT_TRUE(close(got.d_q, want.d_index_q, kRoundoff));
            EXPECT_TRUE(close(got.d_k, want.d_index_k, kRoundoff));
        }
}

TEST(LightningKlForms, NoWeightIsTheUniformDistribution) {
    const Problem& p = kSmall.problem;
    const Operands o = make_operands(kSmall, Element::f32);
    Indexer x(p, 3);
    std::fill_n(x.w.data(), x.w.size(), 0.0F);
    const LightningKlInput in = input(o, x, {}, Teacher::mean);
    const Result got = fast(p, in, x);
    for (int64_t i = 0; i < p.queries(); ++i)
        EXPECT_NEAR(got.entropy(i), std::log(static_cast<double>(i + 1)), 1e-5);
    EXPECT_EQ(largest_size(got.d_q), 0);
    EXPECT_EQ(largest_size(got.d_k), 0);
    EXPECT_GT(largest_size(got.d_w), 0);
}

/// The comparison with the reference sees an indexer without signs, and one without its last head.
TEST(LightningKlForms, AnInjectedErrorIsSeen) {
    const Problem& p = kSmall.problem;
    const Operands o = make_operands(kSmall, Element::f32);
    const Indexer x(p, 3);
    const LightningKlInput in = input(o, x, {}, Teacher::mean);
    const Result want = reference_of(p, in, x);
    const Bounds b = bounds_of(p, o, x, Teacher::mean);
    Indexer wrong(p, 3);
    for (int64_t n = 0; n < wrong.w.size(); ++n) wrong.w.data()[n] = std::fabs(wrong.w.data()[n]);
    EXPECT_FALSE(matches(fast(p, input(o, wrong, {}, Teacher::mean), wrong), want, b));
    for (const auto& spoil :
         {+[](Result& r) { r.kl(5, 1) += 1e-2; }, +[](Result& r) { r.entropy(5) -= 2e-2; },
          +[](Result& r) { r.d_q(5, 1, 1) += 2e-5F; }, +[](Result& r) { r.d_k(5, 1) += 3e-3F; },
          +[](Result& r) { r.d_w(5, 2) *= -1; }}) {
        Result spoilt = fast(p, in, x);
        EXPECT_TRUE(matches(spoilt, want, b));
        spoil(spoilt);
        EXPECT_FALSE(matches(spoilt, want, b));
    }
}

}  // namespace
}  // namespace msa::test
