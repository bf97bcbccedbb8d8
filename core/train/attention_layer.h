// SPDX-License-Identifier: MIT
// The attention half of a transformer's layer, y = x + attention(norm(x)), forward and backward:
// dense attention, the paper's Algorithm 1 (alg:msa-train) with the variations of its appendix, or
// the first block and a window of tokens.
#pragma once

#include "core/train/config.h"
#include "core/train/parameters.h"
#include "core/train/window_attention.h"

namespace msa::train {

/// A batch of packed sequences in the backend's memory.
struct Batch {
    PackedBatch layout;
    View<const int32_t, 1> tokens;     // [n]
    View<const int32_t, 1> targets;    // [n], Ops::kNoTarget where nothing is predicted
    View<const int32_t, 1> positions;  // [n] in their sequences
    /// Targets and tokens of all workers' batches of the step, over which losses are means. 0: this
    /// batch is the whole step.
    int64_t step_targets = 0, step_tokens = 0;
};

/// Cosines and sines of RoPE [max_positions, rotary_dim / 2, 2] on the backend; absent without
/// RoPE.
Tensor<float, 3> rope_table(Backend& backend, int64_t max_positions, int64_t rotary_dim,
                            double theta);

/// The context of a pass through a model.
struct Pass {
    Ops& ops;
    Weights& weights;
    const Batch& batch;
    /// Whether the indexer's warm-up is over, so that the Main Branch attends to selected blocks.
    bool sparse;
    /// Whether a KL loss that is not detached reaches the layer's input in this step.
    bool attached = true;
};

/// Activations that one layer keeps from its forward pass, for the backward pass and for
/// inspection. n tokens; letters of core/problem.h.
struct AttentionState {
    Buffer<2> x{}, h{};                  // [n, D] input, and after the norm: the x of captures
    Buffer<3> raw_q{}, q{};              // [n, Hq, dh] before and after norm and RoPE
    Buffer<3> raw_k{}, k{}, v{};         // [n, Hkv, dh]
    Buffer<3> out{};                     // [n, Hq, dh]
    Tensor<float, 2> lse{};              // [n, Hq]
    Buffer<3> raw_index_q{}, index_q{};  // [n, Hkv, didx]
    Buffer<3> raw_index_k{}, index_k{};  // [n, 1, didx]
    Tensor<int32_t, 3> ids{};            // [n, Hkv, k]
    Tensor<float, 2> support_lse{};      // [n, Hkv] of index_select
    Tensor<double, 2> kl{};              // [n, Hkv], written by the backward pass
    Buffer<3> index_v{};                 // [n, 1, didx]; this and the rest of the value head
    Buffer<3> many_k{}, many_v{};        // [n, Hkv, didx] index_k and index_v for every group
    Buffer<3> index_out{};               // [n, Hkv, didx]
    Tensor<float, 2> index_lse{};        // [n, Hkv]
    WindowAttention* window{};           // for the layout of the batch, where the layer has one
};

/// Scratch memory for one layer's gradients, shared by all layers.
struct AttentionScratch {
    Buffer<2> d_h{};
    Buffer<3> d_out{}, d_q{}, d_k{}, d_v{};  // d_out is free once attention has its gradient
    /// [n, Hq] of the teacher where that is not the layer's own attention on its own support.
    Tensor<float, 2> teacher_lse{};
    Buffer<3> other_q{}, other_k{};      // of next_sequence
    Tensor<int32_t, 1> next_sequence{};  // [n] the token at the same position there
    Tensor<float, 1> d_sinks{};
    Tensor<float, 3> kl_d_q{};  // [n, Hkv, didx]
    Tensor<float, 2> kl_d_k{};  // [n, didx]
    Buffer<3> d_index_q{}, d_index_k{}, d_index_v{}, d_index_out{}, d_many_k{}, d_many_v{};
};

class AttentionLayer {
public:
    /// Adds the layer's parameters, "layers.<layer>....", to the list.
    AttentionLayer(const ModelConfig& config, int64_t layer, ParameterList& parameters);

    AttentionState make_state(Ops& ops, int64_t tokens) const;
    AttentionScratch make_scratch(Ops& ops, int64_t tokens) const;

    /// [Hq] The learnable sinks; absent if the layer has none.
    View<const float, 1> sinks(const Weights& weights) const;

    /// x [n, D] becomes x + attention(norm(x)).
    void forward(const Pass& pass, View<const float, 3> rope, View<const float, 3> index_rope,
                 AttentionState& s, Out<2> x) const;
    /// d, the gradient of y [n, D], becomes that of x. Adds the gradient of the KL loss times its
    /// weight.
    void backward(const Pass& pass, View<const float, 3> rope, View<const float, 3> index_rope,
                  AttentionState& s, AttentionScratch& scratch, Out<2> d) const;

private:
    struct Index {
        ParameterIndex q = 0, k = 0, q_norm = 0, k_norm = 0, v = 0, o = 0;
    };

    void project_index(const Pass& pass, View<const float, 3> rope, AttentionState& s) const;
    void attend(const Pass& pass, AttentionState& s) const;
    void attend_grad(const Pass& pass, AttentionState& s, AttentionScratch& t) const;
    void value_head(const Pass& pass, AttentionState& s, Out<2> y) const;
    void value_head_grad(const Pass& pass, AttentionState& s, AttentionScratch& t, In<2> d) const;
    void index_grad(const Pass& pass, View<const float, 3> rope, AttentionState& s,
                    AttentionScratch& t) const;
    void kl_grad(const Pass& pass, AttentionState& s, AttentionScratch& t) const;
    void index_heads_grad(const Pass& pass, View<const float, 3> rope, AttentionState& s,
                          AttentionScratch& t, bool detach) const;
    /// Backward through rotation, norm and projection; `d` is the gradient of the rotated heads.
    void heads_grad(const Pass& pass, View<const float, 3> rope, Buffer<3>& raw, Buffer<3>& d,
                    ParameterIndex norm, bool normed) const;
    bool has_index() const { return train::has_index(kind_); }
    AttentionInput input(const Pass& pass, const AttentionState& s) const;
    View<const int32_t, 3> support(const Pass& pass, const AttentionState& s) const;

    const ModelConfig& config_;
    Attention kind_;
    ParameterIndex norm_ = 0, q_ = 0, k_ = 0, v_ = 0, o_ = 0, q_norm_ = 0, k_norm_ = 0, sinks_ = 0;
    Index index_;
};

}  // namespace msa::train
