// SPDX-License-Identifier: MIT
// The comparisons must catch what they are for: an error of twice the bound in one element, in
// every output of every operation, and one wrong block among thousands.
#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

Case regular() { return cases().front(); }
/// With a window, a soft cap and sinks.
Case own_attention() { return cases(kOwnAttention).back(); }

/// `matches` holds, holds with half a bound added to one finite element, fails with two bounds.
template <typename Check, typename T, int Rank>
void expect_caught(const Check& matches_now, Tensor<T, Rank>& output, double bound) {
    int64_t at = output.size() / 2;
    while (!std::isfinite(output.data()[at])) ++at;
    T& element = output.data()[at];
    const T clean = element;
    EXPECT_TRUE(matches_now());
    element = static_cast<T>(clean + bound / 2);
    EXPECT_TRUE(matches_now());
    element = static_cast<T>(clean + 2 * bound);
    EXPECT_FALSE(matches_now());
    element = std::numeric_limits<T>::quiet_NaN();
    EXPECT_FALSE(matches_now());
    element = clean;
}

class InjectedErrorIn : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, InjectedErrorIn, testing::Values(regular(), own_attention()),
                         [](const auto& of) { return of.param.name; });

TEST_P(InjectedErrorIn, DenseAndSparseAttention) {
    const Operands o = make_operands(GetParam(), Element::f32);
    const Problem& p = GetParam().problem;
    const Bounds b = bounds(p, o);
    const Tensor<int32_t, 3> ids = reference().index_select(p, GetParam().rule, o);
    for (bool sparse : {false, true}) {
        const auto run = [&] {
            return sparse ? reference().sparse_attention(p, o, ids.view())
                          : reference().dense_attention(p, o);
        };
        const Attention want = run();
        Attention got = run();
        const auto check = [&] { return static_cast<bool>(matches(got, want, b)); };
        expect_caught(check, got.out, b.out);
        expect_caught(check, got.lse, b.lse);
    }
}

TEST(InjectedError, AttentionGradients) {
    const Problem& p = regular().problem;
    Operands o = make_operands(regular(), Element::f32);
    const Tensor<int32_t, 3> ids = reference().index_select(p, regular().rule, o);
    o.sinks = normal<1>({p.query_heads}, 12);
    for (bool sparse : {false, true}) {
        const Tensor<float, 3> d_out = normal<3>(o.q.shape(), 11);
        const AttentionLoss loss(p, o, sparse ? ids.view() : View<int32_t, 3>(), d_out);
        const Backward backward{loss.saved(), normal<3>(o.q.shape(), 11)};
        const auto run = [&] {
            return sparse ? reference().sparse_attention_grad(p, o, ids.view(), backward)
                          : reference().dense_attention_grad(p, o, backward);
        };
        const AttentionGrad want = run();
        AttentionGrad got = run();
        const GradientSizes sizes = loss.sizes();
        const auto check = [&] { return static_cast<bool>(matches(got, want, sizes)); };
        expect_caught(check, got.d_q, sizes.d_q());
        expect_caught(check, got.d_k, sizes.d_k());
        expect_caught(check, got.d_v, sizes.d_v());
        expect_caught(check, got.d_sinks, sizes.d_sinks());
    }
}

TEST_P(InjectedErrorIn, BlockMass) {
    const Operands o = make_operands(GetParam(), Element::f32);
    const Bounds b = bounds(GetParam().problem, o);
    const BlockMass want = reference().block_mass(GetParam().problem, o);
    BlockMass got = reference().block_mass(GetParam().problem, o);
    const auto check = [&] { return static_cast<bool>(matches(got, want, b)); };
    expect_caught(check, got.mass, b.mass);
    expect_caught(check, got.max_logit, b.max_logit);
}

TEST_P(InjectedErrorIn, IndexKl) {
    const Operands o = make_operands(GetParam(), Element::f32);
    const Bounds b = bounds(GetParam().problem, o);
    const IndexKl want = reference().index_kl(GetParam().problem, o, {});
    IndexKl got = reference().index_kl(GetParam().problem, o, {});
    const auto check = [&] { return static_cast<bool>(matches(got, want, b)); };
    expect_caught(check, got.kl, b.kl);
    expect_caught(check, got.d_index_q, b.d_index_q);
    expect_caught(check, got.d_index_k, b.d_index_k);
}

TEST(InjectedError, IndexScores) {
    const Operands o = make_operands(regular(), Element::f32);
    const double bound = bounds(regular().problem, o).scores;
    const Tensor<float, 3> want = reference().index_scores(regular().problem, o);
    Tensor<float, 3> got = reference().index_scores(regular().problem, o);
    const auto check = [&] { return static_cast<bool>(close(got, want, bound)); };
    expect_caught(check, got, bound);
}

TEST(InjectedError, OneWrongBlock) {
    const Problem& p = regular().problem;
    const Tensor<float, 3> scores = normal<3>({p.queries(), p.kv_heads, p.blocks()}, 7);
    Tensor<int32_t, 3> ids = reference().select_blocks(p, regular().rule, scores);
    const double bound = 1e-5;
    ASSERT_TRUE(selection_follows(p, regular().rule, scores, ids, bound));
    int32_t* row = &ids(p.queries() - 1, 1, 0);
    // Replace the first kept free block by the first dropped one, keeping the order.
    for (int32_t b = 0; b < p.blocks(); ++b) {
        if (std::find(row, row + regular().rule.top_k, b) != row + regular().rule.top_k) continue;
        row[0] = b;
        std::sort(row, row + regular().rule.top_k);
        break;
    }
    EXPECT_FALSE(selection_follows(p, regular().rule, scores, ids, bound));
    EXPECT_FALSE(selection_follows(p, regular().rule, scores, ids, 0));
}

TEST(InjectedError, BrokenSelections) {
    const Problem& p = regular().problem;
    const Tensor<float, 3> scores = normal<3>({p.queries(), p.kv_heads, p.blocks()}, 7);
    const auto broken = [&](auto change) {
        Tensor<int32_t, 3> ids = reference().select_blocks(p, regular().rule, scores);
        change(&ids(p.queries() - 1, 0, 0));
        return !selection_follows(p, regular().rule, scores, ids, 1e9);
    };
    EXPECT_TRUE(broken([](int32_t* row) { std::swap(row[0], row[1]); }));
    EXPECT_TRUE(broken([](int32_t* row) { row[0] = row[1]; }));
    EXPECT_TRUE(broken([](int32_t* row) { row[3] = kNoBlock; }));  // the local block, and too few
    EXPECT_TRUE(broken([](int32_t* row) { row[3] = 10; }));        // not visible
    EXPECT_TRUE(broken([](int32_t* row) { row[0] = -7; }));
    EXPECT_FALSE(broken([](int32_t*) {}));
}

// A key that a million rows of 16 heads see is a sum of 2^24 products.
TEST(Bounds, OfASumGrowWithItsTerms) {
    double before = 0;
    for (int log = 0; log <= 40; ++log) {
        const double now = gamma(std::ldexp(1.0, log));
        EXPECT_GE(now, std::ldexp(kRoundoff, log)) << "2^" << log;
        EXPECT_GT(now, before) << "2^" << log;
        before = now;
    }
}

}  // namespace
}  // namespace msa::test
