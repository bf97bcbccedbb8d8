// SPDX-License-Identifier: MIT
// Attention to the first block and a window of tokens that ends at the query, k Bk tokens in all:
// the baseline of app:prelim-swa, with the same tokens as core/select/window_tokens.cpp.
//
// It makes two calls of a backend. A query in block b at offset r attends to
//   1. block 0 and the k - 1 newest blocks: sparse attention over k ids;
//   2. the tokens of block c = b - k + 1 after offset r, if c > 0. In reversed order, from the last
//      token of c to its second, these are the first Bk - 1 - r keys. So this is causal attention
//      of short sequences, one per block, whose queries are those of b, reversed too.
// The two are merged by their lse. In the backward pass each is a part (AttentionSaved::partial).
#pragma once

#include "core/train/buffer.h"
#include "core/train/ops.h"

namespace msa::train {

class WindowAttention {
public:
    /// For one layout, whose sequences have equally many queries and keys. top_k is k, at least 2.
    WindowAttention(Ops& ops, const Problem& problem, int64_t top_k);

    const PackedBatch& layout() const { return layout_; }

    /// `problem` must be the one given to the constructor.
    void forward(Ops& ops, const Problem& problem, const AttentionInput& in,
                 const AttentionOutput& to);
    /// As Backend::dense_attention_grad, from the out and lse of forward().
    void backward(Ops& ops, const Problem& problem, const AttentionInput& in,
                  const AttentionSaved& saved, const AttentionGradient& to);

private:
    void gather(Ops& ops, const AttentionInput& in);
    Problem rest(const Problem& problem) const;

    PackedBatch layout_, rest_;                 // of 1 and 2
    Tensor<int32_t, 3> ids_;                    // [n, Hkv, k]
    Tensor<int32_t, 1> query_rows_, key_rows_;  // [m], [j] what 2 takes of the packed tokens
    Buffer<3> q_, out_, d_out_, d_q_;           // [m, Hq, dh]
    Buffer<3> k_, v_, d_k_, d_v_;               // [j, Hkv, dh]
    Tensor<float, 2> lse_;                      // [m, Hq]
};

}  // namespace msa::train
