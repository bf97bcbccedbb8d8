// SPDX-License-Identifier: MIT
// The gradients of the cuda backend: which kernel answers, and that tuned kernels agree with plain
// ones, which tests/backends compares with the reference: in many chunks, beside NaN, in a graph.
#include "core/error.h"
#include "core/kernel_sizes.h"
#include "gpu/plan/padded_heads.h"
#include "tests/backends/cuda_grad_pass.h"

namespace msa::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

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
    EXPECT_EQ(backend_->answered_by(),
              "sparse_attention_grad_" + by.substr(27, 4) + cuda::padding_of(c.problem));
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
    const bool fits = !c.name.ends_with("more_queries_than_keys") && c.problem.head_dim <= 128;
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
          make_case("h256", {8, 2, 256, 64, 128}, {0, 9000}, {0, 9000}, {.top_k = 8}),
          make_case("h96", {8, 2, 96, 64, 128}, {0, 9000}, {0, 9000}, {.top_k = 8}),
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
