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
    EXPECT_EQ(dense_attention_grad_flops(p), 10.0 * 8 * 32 * 5050);
    EXPECT_EQ(index_scores_flops(p), 2.0 * 2 * 16 * 5050);
    EXPECT_EQ(index_kl_flops(p, 10), 2.0 * (4 * 32 + 3 * 16) * 10);
    EXPECT_EQ(index_gradient_flops(p, 10), 4.0 * 16 * 10);
}

TEST(CostModel, OneFarQueryAtThePapersShape) {
    // Dense pairs of one query behind 1M keys, and its full budget of blocks.
    Problem p = square_problem(0, 64, 4, 128, 128, 128);
    p.batch = PackedBatch({0, 1}, {0, 1048576});
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
    EXPECT_EQ(sparse_attention_grad_flops(p, ids), 10.0 * 16 * 16);
}

TEST(CostModel, MsaAttendsToItsOwnBlockAndOthersWhole) {
    Problem p = square_problem(20, 2, 2, 16, 16, 8);
    // All that is visible up to two blocks; then the own block as far as it is seen, and 8.
    EXPECT_EQ(kept_pairs(p, 2), 16.0 * 17 / 2 + (8 + 1) + (8 + 2) + (8 + 3) + (8 + 4));
    Tensor<int32_t, 3> ids({20, 2, 2});
    for (int64_t i = 0; i < 20; ++i)
        for (int64_t r = 0; r < 2; ++r) {
            ids(i, r, 0) = 0;
            ids(i, r, 1) = i < 8 ? kNoBlock : static_cast<int32_t>(i / 8);
        }
    EXPECT_EQ(2 * kept_pairs(p, 2), selected_pairs(p, ids));
    EXPECT_EQ(2 * attention_flops(p, kept_pairs(p, 2)), 2 * sparse_attention_flops(p, ids));
    EXPECT_EQ(kept_pairs(p, 3), causal_pairs(p));
    p.batch = PackedBatch({0, 2}, {0, 20}, {-1, 19});  // one query sees nothing
    EXPECT_EQ(kept_pairs(p, 2), 12);
}

TEST(CostModel, AWindowIsCountedWhereTheMainBranchHasOne) {
    Problem p = square_problem(20, 2, 2, 16, 16, 8);
    p.window = 5;
    const double pairs = 1 + 2 + 3 + 4 + 16 * 5;
    EXPECT_EQ(attended_pairs(p), pairs);
    EXPECT_EQ(dense_attention_flops(p), 4.0 * 2 * 16 * pairs);
    EXPECT_EQ(block_mass_flops(p), 2.0 * 2 * 16 * pairs);
    EXPECT_EQ(index_scores_flops(p), 2.0 * 2 * 16 * 210);  // it has no window
    Tensor<int32_t, 3> ids({20, 2, 2});
    for (int64_t i = 0; i < ids.size(); ++i) ids.data()[i] = kNoBlock;
    ids(17, 0, 0) = 0;  // none: the window is 13-17
    ids(17, 0, 1) = 1;  // tokens 13-15
    ids(17, 1, 0) = 2;  // tokens 16, 17
    ids(3, 1, 0) = 0;   // tokens 0-3
    EXPECT_EQ(selected_pairs(p, ids), 3 + 2 + 4);
}

TEST(CostModel, BytesCountEverythingOnce) {
    const Problem p = square_problem(20, 4, 2, 16, 32, 8);  // blocks of 8, 8 and 4 tokens
    EXPECT_EQ(select_blocks_bytes(p, 2), 4.0 * 20 * 2 * (3 + 2));
    EXPECT_EQ(index_select_bytes(p, Element::bf16, 2),
              2.0 * (20 * 2 * 32 + 20 * 32) + 4.0 * 20 * 2 * 2);
    const double queries = 2 * 4.0 * 20 * 4 * 16 + 4.0 * 20 * 4;
    EXPECT_EQ(dense_attention_bytes(p, Element::f32), queries + 2 * 4.0 * 20 * 2 * 16);
    EXPECT_EQ(block_mass_bytes(p, Element::f32),
              4.0 * (20 * 4 * 16 + 20 * 2 * 16) + 4.0 * 20 * 2 * 3);
    Tensor<int32_t, 3> ids({20, 2, 2});
    for (int64_t i = 0; i < ids.size(); ++i) ids.data()[i] = kNoBlock;
    ids(3, 0, 0) = 0;   // tokens 0-3 of group 0
    ids(5, 0, 0) = 0;   // and 4, 5
    ids(19, 1, 0) = 2;  // tokens 16-19 of group 1
    EXPECT_EQ(sparse_attention_bytes(p, ids, Element::f32),
              queries + 2 * 4.0 * (6 + 4) * 16 + 4.0 * 20 * 2 * 2);
    // d_out, d_q, d_k and d_v beside what the forward pass takes and gives.
    const double gradient = 2 * 4.0 * (20 * 4 * 16 + 20 * 2 * 16);
    EXPECT_EQ(dense_attention_grad_bytes(p, Element::f32),
              dense_attention_bytes(p, Element::f32) + gradient);
    EXPECT_EQ(sparse_attention_grad_bytes(p, ids, Element::f32),
              sparse_attention_bytes(p, ids, Element::f32) + gradient);
}

}  // namespace
}  // namespace msa::analysis
