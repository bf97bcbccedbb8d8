// SPDX-License-Identifier: MIT
// Rows that select nothing, in the tuned gradient.
#include "tests/backends/cuda_grad_pass.h"

namespace msa::test {
namespace {

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

}  // namespace
}  // namespace msa::test
