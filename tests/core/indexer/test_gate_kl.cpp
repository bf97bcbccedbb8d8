// SPDX-License-Identifier: MIT
// The gate of SeerAttention-R: pooled keys by hand; the reference by finite differences and closed
// forms; the fast form by the reference. Against PyTorch: test_gate_golden.cpp.
#include <cmath>

#include "core/gradient_tolerance.h"
#include "core/indexer/gate_kl.h"
#include "core/reference/reference_backend.h"
#include "tests/core/indexer/kl_differences.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

constexpr int64_t kGateDim = 32;

struct GateOperands {
    Tensor<float, 3> q, k, target;

    GateOperands(const Problem& p, const Operands& o, Teacher teacher)
        : q(normal<3>({p.queries(), p.kv_heads, kGateDim}, 21)),
          k(normal<3>({block_starts(p).back(), p.kv_heads, kGateDim}, 22)),
          target({p.queries(), p.kv_heads, p.blocks()}) {
        reference::gate_teacher(p, {o.q.view(), o.k.view(), o.sinks.view(), teacher}, target);
    }
    GateKlInput input(View<const int32_t, 3> ids = {}) const {
        return {q.view(), k.view(), target.view(), ids};
    }
};

struct GateResult {
    Tensor<double, 2> kl, entropy, target_entropy;
    Tensor<float, 3> d_q, d_k;

    GateResult(const Problem& p, const GateOperands& of)
        : kl({p.queries(), p.kv_heads}),
          entropy(kl.shape()),
          target_entropy(kl.shape()),
          d_q(of.q.shape()),
          d_k(of.k.shape()) {}
    GateKlOutput output() {
        return {kl.view(), entropy.view(), target_entropy.view(), d_q.view(), d_k.view()};
    }
};

GateResult reference_gate(const Problem& p, const GateOperands& x,
                          View<const int32_t, 3> ids = {}) {
    GateResult result(p, x);
    reference::gate_kl(p, x.input(ids), result.output());
    return result;
}

GateResult fast_gate(const Problem& p, const GateOperands& x, View<const int32_t, 3> ids = {},
                     int threads = 2) {
    GateResult result(p, x);
    gate_kl(p, x.input(ids), result.output(), threads);
    return result;
}

struct GateBounds {
    double kl, entropy, target_entropy, d_q, d_k;
};

/// Both forms have the same teacher, and float errors in the logits alone.
GateBounds bounds_of_gate(const Problem& p, const GateOperands& x) {
    const double scale = x.input().scale(), blocks = static_cast<double>(p.blocks()),
                 rows = std::max(1.0, static_cast<double>(p.queries()));
    const double q = largest_norm<3>(x.q), k = largest_norm<3>(x.k);
    const double logit = logit_bound(scale, q, k, kGateDim), size = 2 * scale * q * k;
    const TeacherBound target{0, gamma(blocks), 0};
    const double entropy = 2 * logit + weight_bound(logit, blocks) * (size + std::log(blocks));
    return {2 * logit + gamma(8 * blocks), entropy, 1e-12,
            kl_gradient_bound(target, logit, blocks, scale, k, 1, rows) + kRoundoff * scale * k,
            kl_gradient_bound(target, logit, blocks, scale, q, rows, rows) + kRoundoff * scale * q};
}

testing::AssertionResult matches(const GateResult& got, const GateResult& want,
                                 const GateBounds& b) {
    if (auto same = close(got.kl, want.kl, b.kl); !same) return same << " (kl)";
    if (auto same = close(got.entropy, want.entropy, b.entropy); !same) return same << " (entropy)";
    if (auto same = close(got.target_entropy, want.target_entropy, b.target_entropy); !same)
        return same << " (target_entropy)";
    if (auto same = close(got.d_q, want.d_q, b.d_q); !same) return same << " (d_q)";
    return close(got.d_k, want.d_k, b.d_k) << " (d_k)";
}

class GateKl : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, GateKl, testing::ValuesIn(cases()),
                         [](const auto& c) { return c.param.name; });
INSTANTIATE_TEST_SUITE_P(OwnAttention, GateKl, testing::ValuesIn(cases(kOwnAttention)),
                         [](const auto& c) { return c.param.name; });

TEST_P(GateKl, FastTeacherMatchesReference) {
    const Problem& p = GetParam().problem;
    const Operands o = make_operands(GetParam(), Element::f32);
    double keys = 1;
    for (const KeyRange& seen : visible_keys(p))
        keys = std::max(keys, static_cast<double>(seen.count));
    const double logit = main_logit_bound(p, largest_norm<3>(o.q), largest_norm<3>(o.k));
    for (Teacher teacher : {Teacher::mean, Teacher::max}) {
        Tensor<float, 3> got({p.queries(), p.kv_heads, p.blocks()}), want(got.shape());
        const GateTeacherInput in{o.q.view(), o.k.view(), o.sinks.view(), teacher};
        gate_teacher(p, in, got, 2);
        reference::gate_teacher(p, in, want);
        EXPECT_TRUE(close(got, want, weight_bound(logit, keys) + kRoundoff));
    }
}

TEST_P(GateKl, FastMatchesReferenceOnBothSupports) {
    const Case& c = GetParam();
    const Operands o = make_operands(c, Element::f32);
    const Tensor<int32_t, 3> ids = reference().index_select(c.problem, c.rule, o);
    for (Teacher teacher : {Teacher::mean, Teacher::max}) {
        const GateOperands x(c.problem, o, teacher);
        for (const View<const int32_t, 3>& support : {View<const int32_t, 3>(), ids.view()})
            EXPECT_TRUE(matches(fast_gate(c.problem, x, support),
                                reference_gate(c.problem, x, support),
                                bounds_of_gate(c.problem, x)))
                << (support ? "selected" : "full") << " support, seed " << seed();
    }
}

/// The mean over heads of sums over tokens is what block_mass has.
TEST_P(GateKl, MeanTeacherIsTheBlockMassBeforeTheOwnBlock) {
    const Problem& p = GetParam().problem;
    const Operands o = make_operands(GetParam(), Element::f32);
    const Tensor<float, 3> mass = reference().block_mass(p, o).mass;
    Tensor<float, 3> target(mass.shape());
    reference::gate_teacher(p, {o.q.view(), o.k.view(), o.sinks.view(), Teacher::mean}, target);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const int64_t own =
                own_block(visible_keys(p)[static_cast<size_t>(i)].count, p.block_size);
            for (int64_t b = 0; b < p.blocks(); ++b)
                if (b < own)
                    ASSERT_NEAR(target(i, r, b), mass(i, r, b), 2 * kRoundoff) << i << ' ' << b;
                else
                    ASSERT_EQ(target(i, r, b), 0) << i << ' ' << b;
        }
}

const Case kSmallGate{"small", square_problem(70, 4, 2, 16, 16, 8), {.top_k = 3}};

TEST(GateKlForms, PooledKeysByHand) {
    Tensor<float, 3> k({5, 1, 2});
    const float values[] = {1, -4, 3, 0, 2, 7, 5, 6, -9, 8};
    std::copy_n(values, 10, k.data());
    const Tensor<float, 2> pooled = pool_keys(k, 4);
    EXPECT_EQ(pooled.shape(), (Shape<2>{2, 6}));
    const float want[] = {5, 7, 1, -4, 2.75F, 2.25F, -9, 8, -9, 8, -9, 8};
    EXPECT_TRUE(std::equal(want, want + 12, pooled.data()));
    Problem p = square_problem(0, 1, 1, 16, 16, 8);
    p.batch = PackedBatch({0, 9, 12}, {0, 9, 12});
    EXPECT_EQ(block_positions(p), (std::vector<int64_t>{0, 8, 0}));
}

TEST(GateKlForms, ThreadsChangeNoBit) {
    Problem p = square_problem(0, 4, 2, 16, 16, 8);
    p.batch = PackedBatch({0, 300, 900}, {0, 300, 900});
    const Case c{"long", p, {.top_k = 9}};
    const Operands o = make_operands(c, Element::f32);
    const GateOperands x(p, o, Teacher::max);
    const GateResult one = fast_gate(p, x, {}, 1), three = fast_gate(p, x, {}, 3);
    EXPECT_TRUE(identical(one.kl, three.kl));
    EXPECT_TRUE(identical(one.d_q, three.d_q));
    EXPECT_TRUE(identical(one.d_k, three.d_k));
    EXPECT_TRUE(matches(one, reference_gate(p, x), bounds_of_gate(p, x)));
    Tensor<float, 3> of_one(x.target.shape()), of_three(x.target.shape());
    const GateTeacherInput in{o.q.view(), o.k.view(), {}, Teacher::max};
    gate_teacher(p, in, of_one, 1);
    gate_teacher(p, in, of_three, 3);
    EXPECT_TRUE(identical(of_one, of_three));
}

TEST(GateKlForms, ReferenceIsTheFiniteDifference) {
    const Problem& p = kSmallGate.problem;
    const Operands o = make_operands(kSmallGate, Element::f32);
    const Tensor<int32_t, 3> ids = reference().index_select(p, kSmallGate.rule, o);
    GateOperands x(p, o, Teacher::max);
    const double scale = x.input().scale();
    for (const View<const int32_t, 3>& support : {View<const int32_t, 3>(), ids.view()}) {
        const GateResult at = reference_gate(p, x, support);
        KlDifferences by(0x1p-7F, [&] { return reference_gate(p, x, support).kl; });
        for (int64_t n = 5; n < x.q.size(); n += 211)
            by.expect(x.q.data()[n], at.d_q.data()[n], scale * largest_norm<3>(x.k));
        for (int64_t n = 5; n < x.k.size(); n += 31)
            by.expect(x.k.data()[n], at.d_k.data()[n], scale * largest_norm<3>(x.q),
                      static_cast<double>(p.queries()));
        EXPECT_GT(by.largest(), 1e-4);
    }
}

TEST(GateKlForms, NoOpinionIsTheUniformDistribution) {
    const Problem& p = kSmallGate.problem;
    const Operands o = make_operands(kSmallGate, Element::f32);
    GateOperands x(p, o, Teacher::max);
    std::fill_n(x.q.data(), x.q.size(), 0.0F);
    const GateResult got = fast_gate(p, x);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const double nats = i < 8 ? 0 : std::log(static_cast<double>(i / 8));
        EXPECT_NEAR(got.entropy(i, 1), nats, 1e-6);
        EXPECT_NEAR(got.kl(i, 1), nats - got.target_entropy(i, 1), 1e-6);
    }
    double largest = 0;  // the keys are not 0: what the queries should become is known
    for (int64_t n = 0; n < got.d_q.size(); ++n)
        largest = std::max(largest, std::fabs(double{got.d_q.data()[n]}));
    EXPECT_GT(largest, 1e-4);
}

/// Keys that are the logarithms of what one query's teacher says have no loss on that query.
TEST(GateKlForms, TheTeachersOwnLogarithmsHaveNoLoss) {
    const Problem& p = kSmallGate.problem;
    const Operands o = make_operands(kSmallGate, Element::f32);
    GateOperands x(p, o, Teacher::max);
    const int64_t last = p.queries() - 1;
    std::fill_n(x.q.data(), x.q.size(), 0.0F);
    std::fill_n(x.k.data(), x.k.size(), 0.0F);
    for (int64_t r = 0; r < 2; ++r) {
        x.q(last, r, 0) = 1;
        for (int64_t b = 0; b < 8; ++b)
            x.k(b, r, 0) =
                static_cast<float>(std::log(double{x.target(last, r, b)}) / x.input().scale());
    }
    const GateResult got = fast_gate(p, x);
    for (int64_t r = 0; r < 2; ++r) {
        EXPECT_NEAR(got.kl(last, r), 0, 1e-10);
        EXPECT_NEAR(got.entropy(last, r), got.target_entropy(last, r), 1e-4);
        EXPECT_GT(got.kl(last - 8, r), 1e-3);
        EXPECT_NEAR(got.d_q(last, r, 0), 0, 1e-6);
    }
}

/// The comparison with the reference sees a gate of other queries, another teacher, and wrong
/// numbers.
TEST(GateKlForms, AnInjectedErrorIsSeen) {
    const Problem& p = kSmallGate.problem;
    const Operands o = make_operands(kSmallGate, Element::f32);
    const GateOperands x(p, o, Teacher::max);
    const GateResult want = reference_gate(p, x);
    const GateBounds b = bounds_of_gate(p, x);
    GateOperands wrong(p, o, Teacher::max);
    for (int64_t n = 0; n < wrong.q.size(); ++n) wrong.q.data()[n] *= 1.01F;
    EXPECT_FALSE(matches(fast_gate(p, wrong), want, b));
    EXPECT_FALSE(matches(fast_gate(p, GateOperands(p, o, Teacher::mean)), want, b));
    for (const auto& spoil : {+[](GateResult& r) { r.kl(25, 1) += 1e-3; },
                              +[](GateResult& r) { r.entropy(25, 0) += 1e-2; },
                              +[](GateResult& r) { r.target_entropy(25, 0) += 1e-6; },
                              +[](GateResult& r) { r.d_q(25, 1, 1) += 2e-5F; },
                              +[](GateResult& r) { r.d_k(5, 1, 3) += 2e-3F; }}) {
        GateResult spoilt = fast_gate(p, x);
        EXPECT_TRUE(matches(spoilt, want, b));
        spoil(spoilt);
        EXPECT_FALSE(matches(spoilt, want, b));
    }
}

}  // namespace
}  // namespace msa::test
