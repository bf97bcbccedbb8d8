// SPDX-License-Identifier: MIT
// The gradients of the cuda backend: which kernel answers, and that tuned kernels agree with plain
// ones, which tests/backends compares with the reference: in many chunks, beside NaN, in a graph.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "core/error.h"
#include "core/kernel_sizes.h"
#include "core/number/convert.h"
#include "core/tolerance.h"
#include "tests/support/compare.h"
#include "tests/support/runner.h"
#include "tests/support/uploaded.h"

namespace msa::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Gradient {
    Tensor<float, 3> d_q, d_k, d_v;
    Tensor<float, 1> d_sinks;
};

void expect_identical(const Gradient& got, const Gradient& want) {
    EXPECT_TRUE(identical(got.d_q, want.d_q));
    EXPECT_TRUE(identical(got.d_k, want.d_k));
    EXPECT_TRUE(identical(got.d_v, want.d_v));
    EXPECT_TRUE(identical(got.d_sinks, want.d_sinks));
}

/// In Euclidean norm. P or dS, the part in a slot and the result are each rounded to `element`, by
/// at most half of storage_roundoff; errors of terms are independent and add up as the terms do.
testing::AssertionResult is_rounded(const Tensor<float, 3>& got, const Tensor<float, 3>& want,
                                    Element element) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < want.size(); ++i) {
        const double g = got.data()[i], w = want.data()[i];
        if (std::isnan(g) != std::isnan(w))
            return testing::AssertionFailure()
                   << "NaN in other places: " << position<3>(got.shape(), i) << " is " << g
                   << ", want " << w;
        if (std::isnan(w)) continue;
        error += (g - w) * (g - w);
        size += w * w;
    }
    const double bound = 1.5 * storage_roundoff(element);
    if (std::sqrt(error) <= bound * std::sqrt(size)) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "off by " << std::sqrt(error / size) << " of its norm";
}

void expect_rounded(const Gradient& got, const Gradient& want, Element element) {
    EXPECT_TRUE(is_rounded(got.d_q, want.d_q, element));
    EXPECT_TRUE(is_rounded(got.d_k, want.d_k, element));
    EXPECT_TRUE(is_rounded(got.d_v, want.d_v, element));
}

/// A forward pass of operands in bf16 or f16, and gradients of it, on the device.
class Pass {
public:
    /// `of_loss` multiplies d_out.
    Pass(Backend& backend, const HalfCase& c, const std::function<void(Operands&)>& change = {},
         float of_loss = 1)
        : backend_(backend), p_(c.problem), element_(c.element) {
        Operands o = make_operands(c, element_);
        // Selections as those of the index, in float: there is nothing to compare them with.
        ids_ = backend.make<int32_t, 3>({p_.queries(), p_.kv_heads, c.rule.top_k});
        const auto index_q = backend.upload(o.index_q.view());
        const auto index_k = backend.upload(o.index_k.view());
        backend.index_select(p_, c.rule, {index_q, index_k}, ids_);
        if (change) change(o);
        q_ = here(o.q), k_ = here(o.k), v_ = here(o.v), out_ = here(o.q);
        Operands other = make_operands({c.name + " of d_out", p_, c.rule, c.values}, element_);
        std::reverse(other.q.data(), other.q.data() + other.q.size());
        for (int64_t i = 0; i < other.q.size(); ++i) other.q.data()[i] *= of_loss;
        d_out_ = here(other.q);
        lse_ = backend.make<float, 2>({p_.queries(), p_.query_heads});
        Tensor<float, 1> sinks({p_.query_heads});
        for (int64_t h = 0; h < sinks.size(); ++h) sinks.data()[h] = 0.25F * static_cast<float>(h);
        sinks_ = backend.upload(sinks.view());
    }
    void attend(bool sparse) {
        const AttentionOutput to{out_, lse_};
        sparse ? backend_.sparse_attention(p_, {q_, k_, v_}, ids_, to)
               : backend_.dense_attention(p_, {q_, k_, v_}, to);
    }
    void attend_with_sinks(LoopOrder order) {
        backend_.sparse_attention(p_, {q_, k_, v_, sinks_}, ids_, {out_, lse_}, order);
    }
    void select_nothing(QueryRange rows) {
        Tensor<int32_t, 3> ids = backend_.download(std::as_const(ids_).view());
        std::fill_n(&ids(rows.begin, 0, 0), (rows.end - rows.begin) * ids.extent(1) * ids.extent(2),
                    kNoBlock);
        ids_ = backend_.upload(std::as_const(ids).view());
    }
    /// Outputs are 0 and lse the sink there, which may have been in base 2.
    void expect_nothing_of(QueryRange rows) const {
        const auto lse = backend_.download(std::as_const(lse_).view());
        const auto sinks = backend_.download(std::as_const(sinks_).view());
        const Tensor<float, 3> out = out_.download();
        for (int64_t i = rows.begin; i < rows.end; ++i)
            for (int64_t h = 0; h < p_.query_heads; ++h) {
                ASSERT_NEAR(lse(i, h), sinks(h), 4 * kRoundoff * (1 + sinks(h))) << i;
                for (int64_t d = 0; d < p_.head_dim; ++d) ASSERT_EQ(out(i, h, d), 0.0F) << i;
            }
    }
    /// Of sparse attention in this order, or of dense attention, into outputs that hold NaN.
    Gradient gradient(Element stored, std::optional<LoopOrder> order) {
        prepare(stored);
        run(stored, order);
        return download(stored);
    }
    Gradient captured_gradient(std::optional<LoopOrder> order) {
        prepare(element_);
        const std::function<void()> again = backend_.make_graph([&] { run(element_, order); });
        prepare(element_);  // what the capture itself wrote is gone
        again();
        return download(element_);
    }
    /// d_sinks [Hq] against -sum exp(sink - lse) <d_out, out> in double. A product of float sums
    /// dh terms; exp and the rounding of the result are each good to kExpRoundoffs.
    void expect_sinks(const Tensor<float, 1>& got) {
        const auto lse = backend_.download(std::as_const(lse_).view());
        const Tensor<float, 3> out = out_.download(), d_out = d_out_.download();
        const auto sinks = backend_.download(std::as_const(sinks_).view());
        for (int64_t h = 0; h < p_.query_heads; ++h) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < p_.queries(); ++i) {
                if (std::isinf(lse(i, h))) continue;
                const double weight = std::exp(double{sinks(h)} - double{lse(i, h)});
                for (int64_t d = 0; d < p_.head_dim; ++d) {
                    const double term = weight * out(i, h, d) * d_out(i, h, d);
                    sum -= term;
                    size += std::fabs(term);
                }
            }
            // The argument of exp is off by its rounding, at most kRoundoff times it.
            const double terms = static_cast<double>(p_.head_dim) + 64 + 2 * kExpRoundoffs;
            EXPECT_NEAR(double{got(h)}, sum, gamma(terms) * size) << "head " << h;
        }
    }
    void spoil_d_out(int64_t query) {
        const int64_t bytes = element_bytes(element_);
        uint16_t nan = 0;
        encode({&kNan, 1}, element_, &nan);
        backend_.copy(
            static_cast<char*>(d_out_.data()) + query * p_.query_heads * p_.head_dim * bytes,
            Space::device, &nan, Space::host, bytes);
    }

private:
    Uploaded<3> here(const Tensor<float, 3>& wide) const { return {backend_, element_, wide}; }
    Uploaded<3>* results(Element stored) { return stored == Element::f32 ? wide_ : narrow_; }
    void prepare(Element stored) {
        const auto poisoned = [&](Uploaded<3>& to, Shape<3> shape) {
            Tensor<float, 3> nan(shape);
            std::fill_n(nan.data(), nan.size(), kNan);
            if (to.data() == nullptr)
                to = {backend_, stored, nan};
            else
                to.assign(nan);
        };
        poisoned(results(stored)[0], q_.shape());
        poisoned(results(stored)[1], k_.shape());
        poisoned(results(stored)[2], k_.shape());
        if (d_sinks_.size() == 0) d_sinks_ = backend_.make<float, 1>({p_.query_heads});
    }
    void run(Element stored, std::optional<LoopOrder> order) {
        const Uploaded<3>* const to = results(stored);
        const AttentionInput in{q_, k_, v_, sinks_};
        const AttentionSaved saved{out_, lse_, d_out_};
        const AttentionGradient into{to[0], to[1], to[2], d_sinks_};
        order ? backend_.sparse_attention_grad(p_, in, ids_, saved, into, *order)
              : backend_.dense_attention_grad(p_, in, saved, into);
    }
    Gradient download(Element stored) {
        const Uploaded<3>* const from = results(stored);
        return {from[0].download(), from[1].download(), from[2].download(),
                backend_.download(std::as_const(d_sinks_).view())};
    }

    Backend& backend_;
    Problem p_;
    Element element_;
    Uploaded<3> q_, k_, v_, d_out_, out_;
    Tensor<float, 2> lse_;
    Tensor<int32_t, 3> ids_;
    Tensor<float, 1> sinks_, d_sinks_;
    Uploaded<3> narrow_[3], wide_[3];
};

class CudaGrad : public testing::Test {
protected:
    void SetUp() override {
        MSA_SKIP_UNLESS_USABLE(name());
        backend_ = make_backend(name());
    }
    virtual std::string name() const { return "cuda"; }
    /// Why the tuned kernel does not answer here; empty: it does.
    std::string no_tuned_kernel(const Problem& p, int64_t top_k) const {
        return backend_
            ->supports(p, SparseAttentionGradRequest{.element = Element::bf16,
                                                     .top_k = top_k,
                                                     .order = LoopOrder::kv_outer,
                                                     .saved = Element::bf16})
            .why_not;
    }

    std::unique_ptr<Backend> backend_;
};
class CudaGradCases : public CudaGrad, public testing::WithParamInterface<HalfCase> {
protected:
    std::string name() const override { return GetParam().backend; }
    Element element() const { return GetParam().element; }
};
INSTANTIATE_TEST_SUITE_P(All, CudaGradCases, testing::ValuesIn(of_all_families(cases(kGradient))),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(CudaGradCases, TunedIsPlainButForRoundings) {
    const HalfCase& c = GetParam();
    const std::string why_not = no_tuned_kernel(c.problem, c.rule.top_k);
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    Pass pass(*backend_, c);
    pass.attend(true);
    const Gradient plain = pass.gradient(Element::f32, LoopOrder::q_outer);
    const std::string by = backend_->answered_by();
    EXPECT_TRUE(by.starts_with("sparse_attention_grad_any; sm")) << by;
    pass.expect_sinks(plain.d_sinks);
    Gradient tuned = pass.gradient(Element::f32, LoopOrder::automatic);
    EXPECT_EQ(backend_->answered_by(), "sparse_attention_grad_" + by.substr(27, 4));
    expect_rounded(tuned, plain, element());
    pass.expect_sinks(tuned.d_sinks);
    expect_identical(pass.gradient(Element::f32, LoopOrder::kv_outer), tuned);
    // Outputs of the operands' type are the float ones rounded, by either kernel.
    const Gradient narrow = pass.gradient(element(), LoopOrder::automatic);
    expect_rounded(narrow, plain, element());
    expect_identical(pass.gradient(element(), LoopOrder::automatic), narrow);
    Gradient rounded{std::move(tuned)};
    for (Tensor<float, 3>* d : {&rounded.d_q, &rounded.d_k, &rounded.d_v})
        round_to(element(), {d->data(), static_cast<size_t>(d->size())});
    expect_identical(narrow, rounded);
}

/// Rows without a block, at the sizes of cuDNN frontend's issue 676: whole tiles of them, all, a
/// few.
class CudaGradEmptyRows : public CudaGradCases {};
INSTANTIATE_TEST_SUITE_P(
    All, CudaGradEmptyRows,
    testing::ValuesIn(of_all_families(
        {make_case("paper", {64, 4, 128, 64, 128}, {0, 256}, {0, 256}, {.top_k = 2}),
         make_case("narrow", {16, 1, 64, 64, 64}, {0, 256}, {0, 256}, {.top_k = 3})})),
    [](const auto& instance) { return instance.param.name; });

TEST_P(CudaGradEmptyRows, GiveNothingAndGetNothing) {
    const HalfCase& c = GetParam();
    const std::string why_not = no_tuned_kernel(c.problem, c.rule.top_k);
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    const auto is_zero = [](const float* first, int64_t count) {
        return std::all_of(first, first + count, [](float x) { return x == 0; });
    };
    for (const QueryRange rows : {QueryRange{128, 256}, {0, 256}, {0, 8}}) {
        SCOPED_TRACE(concat("rows ", rows.begin, ':', rows.end));
        Pass pass(*backend_, c);
        pass.select_nothing(rows);
        for (const LoopOrder order :
             orders_of(*backend_, c.problem,
                       {.element = element(), .top_k = c.rule.top_k, .out = element()})) {
            pass.attend_with_sinks(order);
            pass.expect_nothing_of(rows);
        }
        const Gradient plain = pass.gradient(Element::f32, LoopOrder::q_outer);
        const Gradient tuned = pass.gradient(Element::f32, LoopOrder::automatic);
        EXPECT_TRUE(backend_->answered_by().starts_with("sparse_attention_grad_sm"));
        expect_rounded(tuned, plain, element());
        pass.expect_sinks(plain.d_sinks);
        pass.expect_sinks(tuned.d_sinks);
        const int64_t row = c.problem.query_heads * c.problem.head_dim;
        EXPECT_TRUE(is_zero(&tuned.d_q(rows.begin, 0, 0), (rows.end - rows.begin) * row));
        if (rows.end - rows.begin < c.problem.queries()) continue;
        EXPECT_TRUE(is_zero(tuned.d_k.data(), tuned.d_k.size()));
        EXPECT_TRUE(is_zero(tuned.d_v.data(), tuned.d_v.size()));
        EXPECT_TRUE(is_zero(tuned.d_sinks.data(), tuned.d_sinks.size()));
    }
}

TEST_P(CudaGradCases, DenseIsThePlainOneButForRoundings) {
    // Sparse attention to every visible block is dense attention.
    HalfCase c = GetParam();
    c.rule.top_k = c.problem.blocks();
    Pass pass(*backend_, c);
    pass.attend(false);
    const Gradient want = pass.gradient(Element::f32, LoopOrder::q_outer);
    const Gradient plain = pass.gradient(Element::f32, std::nullopt);
    pass.expect_sinks(plain.d_sinks);
    EXPECT_TRUE(backend_->answered_by().starts_with("dense_attention_grad_any; cuDNN: "))
        << backend_->answered_by();  // outputs in float are its alone
    expect_rounded(plain, want, element());
    const Gradient narrow = pass.gradient(element(), std::nullopt);
    expect_rounded(narrow, want, element());
    expect_identical(pass.gradient(element(), std::nullopt), narrow);
    const bool fits = !c.name.ends_with("more_queries_than_keys");
    if (backend_->device().find("cuDNN") != std::string::npos) {
        EXPECT_EQ(backend_->answered_by().starts_with("cuDNN"), fits) << backend_->answered_by();
    }
}

TEST_P(CudaGradCases, WhatIsNotSeenHasNoInfluence) {
    const HalfCase& c = GetParam();
    const Problem& p = c.problem;
    // The last key and value of each sequence, which one query sees, and a d_out.
    Pass pass(*backend_, c, [&](Operands& o) {
        for (size_t s = 1; s < p.batch.cu_seqlens_k().size(); ++s) {
            const int64_t last = p.batch.cu_seqlens_k()[s] - 1;
            o.k(last, 0, 3) = kNan;
            o.v(last, p.kv_heads - 1, 5) = kNan;
        }
    });
    pass.attend(true);
    pass.spoil_d_out(p.queries() / 2);
    const Gradient plain = pass.gradient(Element::f32, LoopOrder::q_outer);
    int64_t finite = 0;
    for (int64_t i = 0; i < plain.d_q.size(); ++i) finite += std::isfinite(plain.d_q.data()[i]);
    EXPECT_GT(finite, 0);
    EXPECT_LT(finite, plain.d_q.size());
    expect_rounded(pass.gradient(Element::f32, LoopOrder::automatic), plain, element());
    expect_rounded(pass.gradient(element(), LoopOrder::automatic), plain, element());
    pass.attend(false);
    expect_rounded(pass.gradient(element(), std::nullopt),
                   pass.gradient(Element::f32, std::nullopt), element());
}

TEST_P(CudaGradCases, AGraphRepeatsIt) {
    Pass pass(*backend_, GetParam());
    pass.attend(true);
    for (const auto order : {std::optional(LoopOrder::automatic), std::optional(LoopOrder::q_outer),
                             std::optional<LoopOrder>()}) {
        const Gradient want = pass.gradient(element(), order);
        expect_identical(pass.captured_gradient(order), want);
    }
}

TEST_F(CudaGrad, ManyChunksAreTheirSum) {
    static_assert(cuda::sparse_grad_chunk_queries(9000, 10, 128, 16) < 9000 &&
                  cuda::sparse_grad_chunk_queries(33'000, 4, 64, 4) < 33'000);
    // Some blocks are split over work items. Large slots are fetched ahead.
    for (const Case& c :
         {make_case("small_slots", {8, 2, 128, 64, 128}, {0, 9000}, {0, 9000}, {.top_k = 8}),
          make_case("large_slots", {10, 2, 128, 64, 128}, {0, 9000}, {0, 9000}, {.top_k = 8}),
          make_case("blocks_of_32", {8, 2, 128, 64, 32}, {0, 9000}, {0, 9000}, {.top_k = 16}),
          make_case("narrow", {4, 1, 64, 64, 64}, {0, 33'000}, {0, 33'000}, {.top_k = 4})}) {
        const std::string why_not = no_tuned_kernel(c.problem, c.rule.top_k);
        if (!why_not.empty()) GTEST_SKIP() << why_not;
        for (const Element element : {Element::bf16, Element::f16}) {
            Pass pass(*backend_, {c, element});
            pass.attend(true);
            const Gradient tuned = pass.gradient(element, LoopOrder::automatic);
            expect_rounded(tuned, pass.gradient(Element::f32, LoopOrder::q_outer), element);
            expect_identical(pass.gradient(element, LoopOrder::automatic), tuned);
        }
    }
}

TEST_F(CudaGrad, LossesOfAnySizeHaveGradientsThatF16Holds) {
    // dS of the first are about 2^-20, where values of f16 lie 2^-24 apart; of the last, parts of
    // d_q are above its largest value.
    const Case c = make_case("losses", {32, 2, 128, 64, 128}, {0, 512}, {0, 512}, {.top_k = 3});
    const std::string why_not = no_tuned_kernel(c.problem, c.rule.top_k);
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    for (const float of_loss : {0x1p-14F, 0x1p9F, 0x1p12F}) {
        Pass pass(*backend_, {c, Element::f16}, {}, of_loss);
        pass.attend(true);
        const Gradient plain = pass.gradient(Element::f32, LoopOrder::q_outer);
        const Gradient tuned = pass.gradient(Element::f32, LoopOrder::automatic);
        EXPECT_EQ(backend_->answered_by(), "sparse_attention_grad_sm90");
        EXPECT_TRUE(std::all_of(tuned.d_q.data(), tuned.d_q.data() + tuned.d_q.size(),
                                [](float x) { return std::isfinite(x); }));
        expect_rounded(tuned, plain, Element::f16);
    }
}

TEST_F(CudaGrad, DenseInPiecesIsThePlainOneButForRoundings) {
    if (backend_->device().find("cuDNN") == std::string::npos) GTEST_SKIP() << "no cuDNN";
    // dS of the longer sequence takes 27 GiB: two pieces, and the other sequence.
    const Case c =
        make_case("pieces", {16, 2, 64, 64, 64}, {0, 300, 30300}, {0, 400, 30400}, {.top_k = 1});
    for (const Element element : {Element::bf16, Element::f16}) {
        Pass pass(*backend_, {c, element});
        pass.attend(false);
        const Gradient plain = pass.gradient(Element::f32, std::nullopt);
        const Gradient got = pass.gradient(element, std::nullopt);
        EXPECT_TRUE(backend_->answered_by().ends_with(", in 3 pieces")) << backend_->answered_by();
        expect_rounded(got, plain, element);
        pass.expect_sinks(got.d_sinks);
        expect_identical(pass.gradient(element, std::nullopt), got);
    }
}

TEST_P(CudaGradCases, UnorderedDenseIsThePlainOneButForRoundings) {
    const std::unique_ptr<Backend> unordered = make_backend("cuda-unordered");
    Pass pass(*unordered, GetParam());
    pass.attend(false);
    const Gradient plain = pass.gradient(Element::f32, std::nullopt);
    const Gradient got = pass.gradient(element(), std::nullopt);
    expect_rounded(got, plain, element());
    pass.expect_sinks(got.d_sinks);
    const std::string by = unordered->answered_by();
    EXPECT_TRUE(by.ends_with(", unordered") || by.starts_with("dense_attention_grad_any")) << by;
    if (GetParam().name.ends_with("square") &&
        unordered->device().find("cuDNN") != std::string::npos) {
        EXPECT_TRUE(by.starts_with("cuDNN")) << by;
    }
}

TEST_F(CudaGrad, OrdersThatAreMissingAreRefusedWithAReason) {
    const Problem p = square_problem(90, 8, 2, 40, 16, 16);
    const auto why_not = [&](LoopOrder order) {
        return backend_
            ->supports(
                p, SparseAttentionGradRequest{.element = Element::f32, .top_k = 3, .order = order})
            .why_not;
    };
    EXPECT_EQ(why_not(LoopOrder::automatic), "");
    EXPECT_EQ(why_not(LoopOrder::q_outer), "");
    EXPECT_NE(why_not(LoopOrder::kv_outer), "");
    EXPECT_NE(why_not(LoopOrder::tile_union), "");
}

}  // namespace
}  // namespace msa::test
