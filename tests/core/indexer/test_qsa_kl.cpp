// SPDX-License-Identifier: MIT
// The loss of QSA's indexer and its gradient: the reference by hand, by finite differences and,
// where both are one, by the KL of the Index Branch; the fast form by the reference.
#include <cmath>

#include "core/gradient_tolerance.h"
#include "core/indexer/qsa_kl.h"
#include "core/reference/reference_backend.h"
#include "tests/core/indexer/kl_differences.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

constexpr int64_t kQsaDim = 16;

/// Operands of the indexer, and the probabilities of pieces.
struct QsaOperands {
    int64_t compress;
    Tensor<float, 3> q;
    Tensor<float, 2> k;
    Tensor<float, 3> target;

    QsaOperands(const Problem& p, const Operands& o, int64_t heads, int64_t tokens = kQsaCompress)
        : compress(tokens),
          q(normal<3>({p.queries(), heads, kQsaDim}, 31)),
          k(normal<2>({piece_starts(p.batch.cu_seqlens_k(), tokens).back(), kQsaDim}, 32)) {
        Problem pieces = p;
        pieces.block_size = tokens;
        target = reference().block_mass(pieces, o).mass;
    }
    QsaKlInput input(View<const int32_t, 3> ids = {}) const {
        return {q.view(), k.view(), target.view(), compress, ids};
    }
};

struct QsaResult {
    Tensor<double, 2> kl, target_entropy;
    Tensor<double, 1> entropy;
    Tensor<float, 3> d_q;
    Tensor<float, 2> d_k;

    QsaResult(const Problem& p, const QsaOperands& of)
        : kl({p.queries(), p.kv_heads}),
          target_entropy(kl.shape()),
          entropy({p.queries()}),
          d_q(of.q.shape()),
          d_k(of.k.shape()) {}
    QsaKlOutput output() {
        return {kl.view(), entropy.view(), target_entropy.view(), d_q.view(), d_k.view()};
    }
};

QsaResult reference_qsa(const Problem& p, const QsaOperands& x, View<const int32_t, 3> ids = {}) {
    QsaResult result(p, x);
    reference::qsa_kl(p, x.input(ids), result.output());
    return result;
}

QsaResult fast_qsa(const Problem& p, const QsaOperands& x, View<const int32_t, 3> ids = {},
                   int threads = 2) {
    QsaResult result(p, x);
    qsa_kl(p, x.input(ids), result.output(), threads);
    return result;
}

struct QsaBounds {
    double kl, entropy, target_entropy, d_q, d_k;
};

/// Both forms have the same teacher, and float errors in the products alone. A product close to 0
/// may have another sign, which its own error bounds in the score, not in the gradient: there the
/// piece's part is lost or won.
QsaBounds bounds_of_qsa(const Problem& p, const QsaOperands& x) {
    const auto pieces = std::max(2.0, static_cast<double>(x.target.extent(2))),
               heads = static_cast<double>(x.q.extent(1)),
               rows = std::max(1.0, static_cast<double>(p.queries()));
    const double scale = x.input().scale(), q = largest_norm<3>(x.q), k = largest_norm<2>(x.k);
    const double score = heads * logit_bound(scale, q, k, kQsaDim),
                 size = 2 * scale * heads * q * k;
    const TeacherBound target{0, gamma(pieces), 0};
    const double entropy = 2 * score + weight_bound(score, pieces) * (size + std::log(pieces));
    return {2 * score + gamma(8 * pieces), entropy, 1e-12,
            kl_gradient_bound(target, score, pieces, scale, k, 1, rows) + kRoundoff * scale * k,
            kl_gradient_bound(target, score, pieces, scale, q, rows * heads, rows) +
                kRoundoff * scale * q};
}

testing::AssertionResult matches(const QsaResult& got, const QsaResult& want, const QsaBounds& b) {
    if (auto same = close(got.kl, want.kl, b.kl); !same) return same << " (kl)";
    if (auto same = close(got.entropy, want.entropy, b.entropy); !same) return same << " (entropy)";
    if (auto same = close(got.target_entropy, want.target_entropy, b.target_entropy); !same)
        return same << " (target_entropy)";
    if (auto same = close(got.d_q, want.d_q, b.d_q); !same) return same << " (d_q)";
    return close(got.d_k, want.d_k, b.d_k) << " (d_k)";
}

class QsaKl : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, QsaKl, testing::ValuesIn(cases()),
                         [](const auto& c) { return c.param.name; });
INSTANTIATE_TEST_SUITE_P(OwnAttention, QsaKl, testing::ValuesIn(cases(kOwnAttention)),
                         [](const auto& c) { return c.param.name; });

TEST_P(QsaKl, FastMatchesReferenceOnBothSupports) {
    const Case& c = GetParam();
    const Operands o = make_operands(c, Element::f32);
    const Tensor<int32_t, 3> ids = reference().index_select(c.problem, c.rule, o);
    for (const int64_t compress : {4, 3}) {
        const QsaOperands x(c.problem, o, 3, compress);
        for (const View<const int32_t, 3>& support : {View<const int32_t, 3>(), ids.view()})
            EXPECT_TRUE(matches(fast_qsa(c.problem, x, support),
                                reference_qsa(c.problem, x, support), bounds_of_qsa(c.problem, x)))
                << (support ? "selected" : "full") << " support of " << compress << ", seed "
                << seed();
    }
}

const Case kSmallQsa{"small", square_problem(70, 4, 2, 16, 16, 8), {.top_k = 3}};

/// Rows are 4 tokens, the last three are none.
TEST(QsaKlForms, MeansAndPiecesByHand) {
    Tensor<float, 2> x({7, 2});
    const float values[] = {1, -4, 3, 0, 2, 7, 6, 5, 90, 90, 90, 90, 90, 90};
    std::copy_n(values, 14, x.data());
    const Tensor<float, 2> means = piece_means(x.view(), 4);
    EXPECT_EQ(means.shape(), (Shape<2>{1, 2}));
    EXPECT_EQ(means(0, 0), 3);
    EXPECT_EQ(means(0, 1), 2);
    EXPECT_EQ(piece_starts(std::vector<int64_t>{0, 9, 12, 15}, 4),
              (std::vector<int64_t>{0, 2, 2, 2}));
    EXPECT_EQ(piece_starts(std::vector<int64_t>{0, 9, 12}, 3), (std::vector<int64_t>{0, 3, 4}));
}

/// 12 tokens, one head of products 0, ln 3 sqrt(16) and -5 with the three pieces: t is 1/5, 3/5,
/// 1/5.
TEST(QsaKlForms, ARowByHand) {
    const Problem p = square_problem(12, 1, 1, 16, 16, 8);
    Operands o = make_operands({"hand", p, {.top_k = 1}}, Element::f32);
    QsaOperands x(p, o, 1);
    std::fill_n(x.q.data(), x.q.size(), 0.0F);
    std::fill_n(x.k.data(), x.k.size(), 0.0F);
    for (int64_t i = 0; i < 12; ++i) x.q(i, 0, 0) = 4;
    x.k(1, 0) = std::log(3.0F);
    x.k(2, 0) = -5;
    for (int64_t n = 0; n < 3; ++n) x.target(11, 0, n) = n == 1 ? 0.5F : 0.125F;  // of 0.75
    for (const QsaResult& got : {fast_qsa(p, x), reference_qsa(p, x)}) {
        const double want = 2.0 / 6 * std::log(5.0 / 6) + 4.0 / 6 * std::log(4.0 / 6 * 5 / 3);
        EXPECT_NEAR(got.kl(11, 0), want, 1e-6);
        EXPECT_NEAR(got.entropy(11), -0.6 * std::log(0.6) - 0.4 * std::log(0.2), 1e-6);
        EXPECT_NEAR(got.d_k(1, 0), 4.0 / 4 * (0.6 - 4.0 / 6) / 12,
                    4.0 / 4 / 12 * 4)  // and what the rows 7 to 10 add
            << "same order";
        EXPECT_EQ(got.d_k(2, 0), 0) << "a negative product has no gradient";
        EXPECT_EQ(got.kl(2, 0), 0) << "no piece is complete";
        EXPECT_EQ(got.kl(4, 0), 0) << "one is: nothing to choose";
    }
}

TEST(QsaKlForms, ThreadsChangeNoBit) {
    Problem p = square_problem(0, 4, 2, 16, 16, 8);
    p.batch = PackedBatch({0, 301, 900}, {0, 301, 900});
    const Case c{"long", p, {.top_k = 9}};
    const Operands o = make_operands(c, Element::f32);
    const QsaOperands x(p, o, 2);
    const QsaResult one = fast_qsa(p, x, {}, 1), three = fast_qsa(p, x, {}, 3);
    EXPECT_TRUE(identical(one.kl, three.kl));
    EXPECT_TRUE(identical(one.d_q, three.d_q));
    EXPECT_TRUE(identical(one.d_k, three.d_k));
    EXPECT_TRUE(matches(one, reference_qsa(p, x), bounds_of_qsa(p, x)));
}

/// The gradient of index_q and of the keys against differences of the loss, where no product
/// changes its sign.
TEST(QsaKlForms, ReferenceIsTheFiniteDifference) {
    const Problem& p = kSmallQsa.problem;
    const Operands o = make_operands(kSmallQsa, Element::f32);
    const Tensor<int32_t, 3> ids = reference().index_select(p, kSmallQsa.rule, o);
    QsaOperands x(p, o, 3);
    const double scale = x.input().scale();
    for (const View<const int32_t, 3>& support : {View<const int32_t, 3>(), ids.view()}) {
        const QsaResult at = reference_qsa(p, x, support);
        KlDifferences by(
            0x1p-9F, [&] { return reference_qsa(p, x, support).kl; },
            [&] { return product_signs(x.q, x.k, 4); });
        for (int64_t n = 5; n < x.q.size(); n += 311)
            by.expect(x.q.data()[n], at.d_q.data()[n], scale * largest_norm<2>(x.k));
        for (int64_t n = 5; n < x.k.size(); n += 31)
            by.expect(x.k.data()[n], at.d_k.data()[n], 3 * scale * largest_norm<3>(x.q),
                      static_cast<double>(p.queries()));
        EXPECT_GT(by.largest(), 1e-4);
        EXPECT_GT(by.compared(), 8);
    }
}

/// One query head, one index head, pieces of one token and products above 0: the score is the Index
/// Branch's. Of several query heads the selected support tells the two apart: the Index Branch's
/// teacher is the mean of each head's softmax on it.
TEST(QsaKlForms, PiecesOfOneTokenWithoutNegativeProductsAreTheIndexBranch) {
    const Case c{"one", square_problem(60, 1, 1, 16, 16, 8), {.top_k = 3}};
    Operands o = make_operands(c, Element::f32);
    QsaOperands x(c.problem, o, 1, 1);
    for (int64_t n = 0; n < x.q.size(); ++n)
        x.q.data()[n] = o.index_q.data()[n] = std::fabs(x.q.data()[n]);
    for (int64_t n = 0; n < x.k.size(); ++n)
        x.k.data()[n] = o.index_k.data()[n] = std::fabs(x.k.data()[n]);
    const Tensor<int32_t, 3> ids = reference().index_select(c.problem, c.rule, o);
    for (const View<const int32_t, 3>& support : {View<const int32_t, 3>(), ids.view()}) {
        const QsaResult got = reference_qsa(c.problem, x, support);
        const IndexKl want = reference().index_kl(c.problem, o, support, Teacher::mean);
        EXPECT_TRUE(close(got.kl, want.kl, 1e-6));  // probabilities that were stored as float
        EXPECT_TRUE(close(got.d_q, want.d_index_q, 1e-6));
        EXPECT_TRUE(close(got.d_k, want.d_index_k, 1e-6));
    }
}

TEST(QsaKlForms, NoOpinionIsTheUniformDistribution) {
    const Problem& p = kSmallQsa.problem;
    const Operands o = make_operands(kSmallQsa, Element::f32);
    QsaOperands x(p, o, 3);
    std::fill_n(x.q.data(), x.q.size(), 0.0F);
    const QsaResult got = fast_qsa(p, x);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const double nats = i < 3 ? 0 : std::log(static_cast<double>((i + 1) / 4));
        EXPECT_NEAR(got.entropy(i), nats, 1e-6) << i;
        EXPECT_NEAR(got.kl(i, 1), nats - got.target_entropy(i, 1), 1e-6) << i;
    }
    for (int64_t n = 0; n < got.d_k.size(); ++n) EXPECT_EQ(got.d_k.data()[n], 0);
}

/// The comparison with the reference sees other queries, another support, and wrong numbers.
TEST(QsaKlForms, AnInjectedErrorIsSeen) {
    const Problem& p = kSmallQsa.problem;
    const Operands o = make_operands(kSmallQsa, Element::f32);
    const QsaOperands x(p, o, 3);
    const QsaResult want = reference_qsa(p, x);
    const QsaBounds b = bounds_of_qsa(p, x);
    QsaOperands wrong(p, o, 3);
    for (int64_t n = 0; n < wrong.q.size(); ++n) wrong.q.data()[n] *= 1.01F;
    EXPECT_FALSE(matches(fast_qsa(p, wrong), want, b));
    const Tensor<int32_t, 3> ids = reference().index_select(p, kSmallQsa.rule, o);
    EXPECT_FALSE(matches(fast_qsa(p, x, ids.view()), want, b));
    for (const auto& spoil :
         {+[](QsaResult& r) { r.kl(25, 1) += 1e-3; }, +[](QsaResult& r) { r.entropy(25) += 1e-2; },
          +[](QsaResult& r) { r.target_entropy(25, 0) += 1e-6; },
          +[](QsaResult& r) { r.d_q(25, 1, 1) += 2e-5F; },
          +[](QsaResult& r) { r.d_k(5, 3) += 2e-3F; }}) {
        QsaResult spoilt = fast_qsa(p, x);
        EXPECT_TRUE(matches(spoilt, want, b));
        spoil(spoilt);
        EXPECT_FALSE(matches(spoilt, want, b));
    }
}

}  // namespace
}  // namespace msa::test
