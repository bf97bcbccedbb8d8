// SPDX-License-Identifier: MIT
// dense_attention_grad and sparse_attention_grad.
#include <array>
#include <cmath>
#include <limits>

#include "core/selection.h"
#include "tests/backends/attention_grad_test.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/truth.h"
#include "tests/support/values.h"

namespace msa::test {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();

AttentionGrad truth(bool sparse, const Problem& p, const Operands& o, View<const int32_t, 3> ids,
                    const Backward& given) {
    return sparse ? reference().sparse_attention_grad(p, o, ids, given)
                  : reference().dense_attention_grad(p, o, given);
}

testing::AssertionResult same_bits(const AttentionGrad& got, const AttentionGrad& want) {
    if (auto d = identical(got.d_q, want.d_q); !d) return d << " (d_q)";
    if (auto d = identical(got.d_k, want.d_k); !d) return d << " (d_k)";
    if (auto d = identical(got.d_v, want.d_v); !d) return d << " (d_v)";
    return identical(got.d_sinks, want.d_sinks) << " (d_sinks)";
}

class AttentionGradTest : public OperationTest {
protected:
    void SetUp() override {
        OperationTest::SetUp();
        if (ways(runner_, problem(), rule().top_k).empty())
            GTEST_SKIP() << "the backend has no gradient of attention";
        ids_ = reference().index_select(problem(), rule(), operands_);
        d_out_ = make_d_out(operands_.q.shape(), subject().element);
        sinks_ = normal<1>({problem().query_heads}, 12);
    }
    View<const int32_t, 3> support(const Way& way) const {
        return way.sparse ? ids_.view() : View<const int32_t, 3>();
    }
    void set_sinks(bool there) {
        operands_.sinks = Tensor<float, 1>();
        if (!there) return;
        operands_.sinks = Tensor<float, 1>(sinks_.shape());
        std::copy_n(sinks_.data(), sinks_.size(), operands_.sinks.data());
    }
    Backward given(Attention saved) const {
        Tensor<float, 3> d_out(d_out_.shape());
        std::copy_n(d_out_.data(), d_out_.size(), d_out.data());
        return {std::move(saved), std::move(d_out)};
    }
    /// What the reference saves, for tests of bits: dense, sparse.
    std::array<Backward, 2> forward() const {
        return {given(reference().dense_attention(problem(), operands_)),
                given(reference().sparse_attention(problem(), operands_, ids_))};
    }

    Runner runner_{subject()};
    Tensor<int32_t, 3> ids_;
    Tensor<float, 3> d_out_;
    Tensor<float, 1> sinks_;
};
MSA_FOR_ALL_CASES(AttentionGradTest);

TEST_P(AttentionGradTest, MatchesReference) {
    const std::vector<Way> all = ways(runner_, problem(), rule().top_k);
    for (bool sinks : {false, true})
        for (bool sparse : {false, true}) {
            set_sinks(sinks);
            const AttentionLoss loss(problem(), operands_, support({sparse}), d_out_);
            const Backward backward = given(loss.saved());
            const AttentionGrad want = truth(sparse, problem(), operands_, ids_, backward);
            for (const Way& way : all) {
                if (way.sparse != sparse) continue;
                EXPECT_TRUE(matches(run(runner_, way, problem(), operands_, ids_, backward), want,
                                    loss.sizes()))
                    << way << (sinks ? ", sinks" : "") << ", seed " << seed();
            }
        }
}

TEST_P(AttentionGradTest, IsTheFiniteDifferenceOfTheLoss) {
    set_sinks(true);
    const Problem& p = problem();
    for (const Way& way : ways(runner_, p, rule().top_k)) {
        if (way.sparse && way.order != LoopOrder::automatic) continue;
        const AttentionLoss loss(p, operands_, support(way), d_out_);
        const AttentionGrad got = run(runner_, way, p, operands_, ids_, given(loss.saved()));
        const GradientSizes sizes = loss.sizes();
        const auto near = [&](float value, const AttentionLoss::Difference& want, double bound) {
            EXPECT_NEAR(value, want.value, want.bound + bound) << way << ", seed " << seed();
        };
        constexpr int64_t kElements = 7;
        for (int64_t n = 0; n < kElements; ++n) {
            const int64_t d = n * 5 % p.head_dim, r = n % p.kv_heads, h = n * 3 % p.query_heads;
            if (p.queries() > 0) {
                const int64_t i = n * (p.queries() - 1) / (kElements - 1);
                near(got.d_q(i, h, d), loss.by_q(i, h, d), sizes.d_q());
            }
            const int64_t j = n * (p.keys() - 1) / (kElements - 1);
            near(got.d_k(j, r, d), loss.by_k(j, r, d), sizes.d_k());
            near(got.d_v(j, r, d), loss.by_v(j, r, d), sizes.d_v());
        }
        for (int64_t h = 0; h < p.query_heads; h += 3)
            near(got.d_sinks(h), loss.by_sink(h), sizes.d_sinks());
    }
}

TEST_P(AttentionGradTest, ThreadsAndRerunsChangeNoBit) {
    set_sinks(true);
    Runner one(subject(), 1), three(subject(), 3);
    const std::array<Backward, 2> saved = forward();
    for (const Way& way : ways(runner_, problem(), rule().top_k)) {
        const Backward& backward = saved[way.sparse ? 1 : 0];
        const AttentionGrad once = run(one, way, problem(), operands_, ids_, backward);
        for (int rerun = 0; rerun < 2; ++rerun)
            EXPECT_TRUE(same_bits(run(three, way, problem(), operands_, ids_, backward), once))
                << way;
    }
}

TEST_P(AttentionGradTest, KeysThatNobodySeesHaveNoInfluenceAndGetNothing) {
    const std::array<Backward, 2> saved = forward();
    for (const Way& way : ways(runner_, problem(), rule().top_k)) {
        const Backward& backward = saved[way.sparse ? 1 : 0];
        const AttentionGrad clean = run(runner_, way, problem(), operands_, ids_, backward);
        Operands poisoned = make_operands(the_case(), subject().element);
        for (int64_t r = 0; r < problem().kv_heads; ++r) {
            std::vector<bool> seen(static_cast<size_t>(problem().keys()), false);
            for (int64_t i = 0; i < problem().queries(); ++i) {
                const KeyRange range = visible_keys(problem())[static_cast<size_t>(i)];
                for (int64_t j = 0; j < range.count; ++j) {
                    bool in = !way.sparse;
                    for (int32_t b : selected(ids_, i, r)) in |= b == j / problem().block_size;
                    if (in) seen[static_cast<size_t>(range.first + j)] = true;
                }
            }
            for (int64_t j = 0; j < problem().keys(); ++j) {
                if (seen[static_cast<size_t>(j)]) continue;
                for (Tensor<float, 3>* t : {&poisoned.k, &poisoned.v})
                    std::fill_n(t->view()[j][r].data(), problem().head_dim, kNan);
                for (int64_t d = 0; d < problem().head_dim; ++d) {
                    EXPECT_EQ(clean.d_k(j, r, d), 0.0F) << way;
                    EXPECT_EQ(clean.d_v(j, r, d), 0.0F) << way;
                }
            }
        }
        EXPECT_TRUE(same_bits(run(runner_, way, problem(), poisoned, ids_, backward), clean))
            << way;
    }
}

TEST_P(AttentionGradTest, AllBlocksGiveTheDenseGradient) {
    const Tensor<int32_t, 3> all = all_visible_blocks(problem());
    const AttentionLoss loss(problem(), operands_, {}, d_out_);
    const Backward backward = given(loss.saved());
    const AttentionGrad dense = reference().dense_attention_grad(problem(), operands_, backward);
    for (const Way& way : ways(runner_, problem(), all.extent(2)))
        EXPECT_TRUE(
            matches(run(runner_, way, problem(), operands_, all, backward), dense, loss.sizes()))
            << way;
}

class AttentionGradForms : public AttentionGradSubjectTest {};
MSA_FOR_ALL_SUBJECTS(AttentionGradForms);

TEST_P(AttentionGradForms, OneKeyGetsAllOfDOutAndMovesNoQuery) {
    const Case one{"one", square_problem(1, 4, 2, 16, 16, 8), {.top_k = 1}};
    const Operands o = make_operands(one, GetParam().element);
    const Tensor<float, 3> d_out = make_d_out({1, 4, 16}, GetParam().element);
    const AttentionLoss loss(one.problem, o, {}, d_out);
    const Tensor<int32_t, 3> ids = all_visible_blocks(one.problem);
    for (const Way& way : ways(runner_, one.problem, 1)) {
        const AttentionGrad got = run(runner_, way, one.problem, o, ids,
                                      {loss.saved(), make_d_out({1, 4, 16}, GetParam().element)});
        const GradientSizes sizes = loss.sizes();
        for (int64_t d = 0; d < 16; ++d)
            for (int64_t r = 0; r < 2; ++r) {
                EXPECT_NEAR(got.d_v(0, r, d), d_out(0, 2 * r, d) + d_out(0, 2 * r + 1, d),
                            sizes.d_v())
                    << way;
                EXPECT_NEAR(got.d_k(0, r, d), 0, sizes.d_k()) << way;
                EXPECT_NEAR(got.d_q(0, 2 * r, d), 0, sizes.d_q()) << way;
            }
    }
}

TEST_P(AttentionGradForms, EqualScoresShareDOut) {
    // p = 1 / (i + 1), v of key j is j, d_out is 1: dP = 16 j and D = 8 i.
    const int64_t n = 37;
    const Case c{"equal", square_problem(n, 2, 1, 16, 16, 8), {.top_k = 5}, Values::equal};
    Operands o = make_operands(c, GetParam().element);
    for (int64_t j = 0; j < n; ++j) std::fill_n(o.v.view()[j].data(), 16, static_cast<float>(j));
    const Tensor<float, 3> d_out = filled<float, 3>({n, 2, 16}, 1.0F);
    const AttentionLoss loss(c.problem, o, {}, d_out);
    const GradientSizes sizes = loss.sizes();
    const Tensor<int32_t, 3> ids = all_visible_blocks(c.problem);
    for (const Way& way : ways(runner_, c.problem, 5)) {
        const AttentionGrad got = run(runner_, way, c.problem, o, ids,
                                      {loss.saved(), filled<float, 3>({n, 2, 16}, 1.0F)});
        for (int64_t j = 0; j < n; ++j) {
            double d_v = 0, d_k = 0;
            for (int64_t i = j; i < n; ++i) {
                const double p = 1 / static_cast<double>(i + 1);
                d_v += 2 * p;
                d_k += 2 * 0.25 * 0.5 * p * static_cast<double>(16 * j - 8 * i);
            }
            EXPECT_NEAR(got.d_v(j, 0, 3), d_v, sizes.d_v()) << way;
            EXPECT_NEAR(got.d_k(j, 0, 3), d_k, sizes.d_k()) << way;
            EXPECT_NEAR(got.d_q(j, 1, 3), 0, sizes.d_q()) << way;  // sum dS = 0, keys alike
        }
    }
}

TEST_P(AttentionGradForms, ASinkOfHalfTheWeightHalvesDV) {
    // One key with logit 1 and a sink of 1: p = 1/2, out = v / 2, D = dP / 2, dS = dP / 4.
    Problem p = square_problem(1, 1, 1, 16, 16, 8);
    p.softmax_scale_override = 1.0 / 16;
    const Case c{"sink", p, {.top_k = 1}};
    Operands o = make_operands(c, GetParam().element);
    for (Tensor<float, 3>* t : {&o.q, &o.k}) std::fill_n(t->data(), 16, 1.0F);
    for (int64_t d = 0; d < 16; ++d) o.v(0, 0, d) = static_cast<float>(d);
    o.sinks = filled<float, 1>({1}, 1.0F);
    const Tensor<float, 3> d_out = filled<float, 3>({1, 1, 16}, 1.0F);
    const AttentionLoss loss(p, o, {}, d_out);
    const Tensor<int32_t, 3> ids = all_visible_blocks(p);
    const double d_p = 120;  // 0 + ... + 15
    for (const Way& way : ways(runner_, p, 1)) {
        const AttentionGrad got =
            run(runner_, way, p, o, ids, {loss.saved(), filled<float, 3>({1, 1, 16}, 1.0F)});
        EXPECT_NEAR(got.d_v(0, 0, 7), 0.5, loss.sizes().d_v()) << way;
        EXPECT_NEAR(got.d_q(0, 0, 7), d_p / 4 / 16, loss.sizes().d_q()) << way;
        EXPECT_NEAR(got.d_k(0, 0, 7), d_p / 4 / 16, loss.sizes().d_k()) << way;
        EXPECT_NEAR(got.d_sinks(0), -d_p / 4, loss.sizes().d_sinks()) << way;
    }
}

/// Is any element, or are all of them, NaN?
bool any_nan(View<const float, 1> row) {
    return std::any_of(row.data(), row.data() + row.size(), [](float x) { return std::isnan(x); });
}
bool all_nan(View<const float, 1> row) {
    return std::all_of(row.data(), row.data() + row.size(), [](float x) { return std::isnan(x); });
}

TEST_P(AttentionGradForms, ANanSpreadsToWhatSeesItAndNoFurther) {
    // 40 tokens in blocks of 8. Every query selects its own block and the one before.
    const Case c{"nan", square_problem(40, 4, 2, 16, 16, 8), {.top_k = 2}};
    const Problem& p = c.problem;
    Tensor<int32_t, 3> ids({40, 2, 2});
    for (int64_t i = 0; i < 40; ++i)
        for (int64_t r = 0; r < 2; ++r) {
            const auto own = static_cast<int32_t>(i / 8);
            ids(i, r, 0) = own > 0 ? own - 1 : own;
            ids(i, r, 1) = own > 0 ? own : kNoBlock;
        }
    const auto sees = [&](const Way& way, int64_t i, int64_t j) {
        return j <= i && (!way.sparse || j / 8 == i / 8 || j / 8 == i / 8 - 1);
    };
    enum class In : uint8_t { q, k, v, gradient };
    for (const Way& way : ways(runner_, p, 2))
        for (In in : {In::q, In::k, In::v, In::gradient}) {
            Operands o = make_operands(c, GetParam().element);
            Tensor<float, 3> d_out_now = make_d_out({40, 4, 16}, GetParam().element);
            if (in == In::q) o.q(20, 1, 3) = kNan;
            if (in == In::k) o.k(20, 0, 3) = kNan;
            if (in == In::v) o.v(20, 0, 3) = kNan;
            if (in == In::gradient) d_out_now(20, 1, 3) = kNan;
            const Attention forward = way.sparse ? reference().sparse_attention(p, o, ids.view())
                                                 : reference().dense_attention(p, o);
            Backward backward{{Tensor<float, 3>({40, 4, 16}), Tensor<float, 2>({40, 4})},
                              std::move(d_out_now)};
            std::copy_n(forward.out.data(), forward.out.size(), backward.saved.out.data());
            std::copy_n(forward.lse.data(), forward.lse.size(), backward.saved.lse.data());
            const AttentionGrad got = run(runner_, way, p, o, ids, backward);
            const bool of_key = in == In::k || in == In::v;
            const auto hit = [&](int64_t i, int64_t h) {  // the row's outcome is NaN
                return of_key ? h < 2 && sees(way, i, 20) : i == 20 && h == 1;
            };
            for (int64_t i = 0; i < 40; ++i)
                for (int64_t h = 0; h < 4; ++h) {
                    const View<const float, 1> row = got.d_q.view()[i][h];
                    EXPECT_EQ(any_nan(row), hit(i, h)) << way << ' ' << i << ' ' << h;
                    EXPECT_EQ(all_nan(row), hit(i, h)) << way << ' ' << i << ' ' << h;
                }
            for (int64_t j = 0; j < 40; ++j)
                for (int64_t r = 0; r < 2; ++r) {
                    bool reached = false;
                    for (int64_t i = 0; i < 40; ++i)
                        for (int64_t h = 2 * r; h < 2 * r + 2; ++h)
                            reached |= hit(i, h) && sees(way, i, j);
                    for (const Tensor<float, 3>* t : {&got.d_k, &got.d_v}) {
                        EXPECT_EQ(any_nan(t->view()[j][r]), reached) << way << ' ' << j << ' ' << r;
                        EXPECT_EQ(all_nan(t->view()[j][r]), reached) << way << ' ' << j << ' ' << r;
                    }
                }
        }
}

TEST_P(AttentionGradForms, SlotsThatExceedAnyBufferChangeNothing) {
    // 4096 slots a row, nearly all padding: a few queries at a time.
    Problem p = square_problem(40, 4, 2, 256, 16, 256);
    p.batch = PackedBatch({0, 40}, {0, 600});
    const Case c{"slots", p, {.top_k = 4096}};
    const Operands o = make_operands(c, GetParam().element);
    Tensor<int32_t, 3> ids({40, 2, 4096});
    std::fill_n(ids.data(), ids.size(), kNoBlock);
    for (int64_t i = 0; i < 40; ++i)
        for (int64_t r = 0; r < 2; ++r) ids(i, r, 0) = static_cast<int32_t>((i + r) % 3);
    const Tensor<float, 3> d_out = make_d_out(o.q.shape(), GetParam().element);
    const AttentionLoss loss(p, o, ids.view(), d_out);
    const Backward backward{loss.saved(), make_d_out(o.q.shape(), GetParam().element)};
    const AttentionGrad want = reference().sparse_attention_grad(p, o, ids.view(), backward);
    for (const Way& way : ways(runner_, p, 4096))
        if (way.sparse) {
            EXPECT_TRUE(matches(run(runner_, way, p, o, ids, backward), want, loss.sizes())) << way;
        }
}

}  // namespace
}  // namespace msa::test
