// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "analysis/cost_model.h"
#include "core/selection.h"

namespace msa::analysis {
namespace {

TEST(CostModel, SquareCausalClosedForms) {
    const Problem p = square_problem(100, 8, 2, 32, 16, 16);
    EXPECT_EQ(causal_pairs(p), 5050);
    EXPECT_EQ(block_mass_flops(p), 2.0 * 8 * 32 * 5050);
    EXPECT_EQ(dense_attention_flops(p), 4.0 * 8 * 32 * 5050);
    EXPECT_EQ(index_scores_flops(p), 2.0 * 2 * 16 * 5050);
    EXPECT_EQ(index_kl_flops(p, 10), 2.0 * (4 * 32 + 3 * 16) * 10);
}

TEST(CostModel, OneFarQueryAtThePapersShape) {
    // Dense pairs of one query behind 1M keys, and its full budget of blocks.
    Problem p = square_problem(0, 64, 4, 128, 128, 128);
    p.cu_seqlens_q = {0, 1};
    p.cu_seqlens_k = {0, 1048576};
    Tensor<int32_t, 3> ids({1, 4, 16});
    for (int64_t r = 0; r < 4; ++r)
        for (int32_t b = 0; b < 16; ++b) ids(0, r, b) = b < 15 ? b : 8191;
    const double last =
        dense_attention_flops(p) / (index_scores_flops(p) + sparse_attention_flops(p, ids));
    EXPECT_NEAR(last, 4 * 64 * 128 / (2 * 4 * 128 + 4 * 64 * 128 * 2048.0 / 1048576), 1e-6);
}

TEST(CostModel, SelectedPairsCountVisibleTokensOnly) {
    const Problem p = square_problem(20, 2, 2, 16, 16, 8);
    Tensor<int32_t, 3> ids({20, 2, 2});
    for (int64_t i = 0; i < ids.size(); ++i) ids.data()[i] = kNoBlock;
    ids(19, 0, 0) = 0;  // 8 tokens
    ids(19, 0, 1) = 2;  // tokens 16-19
    ids(3, 1, 0) = 0;   // tokens 0-3
    EXPECT_EQ(selected_pairs(p, ids), 8 + 4 + 4);
    EXPECT_EQ(sparse_attention_flops(p, ids), 4.0 * 16 * 16);
}

}  // namespace
}  // namespace msa::analysis
