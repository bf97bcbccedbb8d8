// SPDX-License-Identifier: MIT
// The configuration of a model: a dense pre-norm transformer (RMS norm, RoPE, SwiGLU, GQA with a
// norm on the heads of q and k, like MiniMax-M3 and Qwen3), and the attention of its layers.
#pragma once

#include <cstdint>
#include <vector>

#include "core/backend.h"
#include "core/selection.h"

namespace msa::train {

struct ModelSizes {
    int64_t vocabulary = 256;  // V: bytes
    int64_t layers = 0;
    int64_t model_dim = 0;      // D
    int64_t hidden_dim = 0;     // F, of the feed-forward part
    int64_t query_heads = 0;    // Hq
    int64_t kv_heads = 0;       // Hkv
    int64_t head_dim = 0;       // dh
    int64_t rotary_dim = 0;     // channels of q and k that RoPE rotates; 0: none
    double rope_theta = 1e5;    // base of RoPE, also in the Index Branch
    int64_t max_positions = 0;  // tokens of the longest sequence
    int64_t index_dim = 0;      // didx
    int64_t index_rotary = 0;   // channels of index_q and index_k that RoPE rotates
    bool index_norm = true;     // RMS norm on the heads of index_q and index_k
};

/// What a layer attends to.
enum class Attention : uint8_t {
    full,     // all visible keys; no Index Branch
    msa,      // the blocks that the Index Branch selects (alg:msa-train)
    window,   // the first block and the newest tokens, k Bk in all (app:prelim-swa); no Index
              // Branch
    passive,  // all visible keys; an Index Branch is trained as in the warm-up, but not used
};
constexpr bool has_index(Attention kind) {
    return kind == Attention::msa || kind == Attention::passive;
}

/// How MSA is trained. Layers without MSA use only `sink`; windows also use block_size and top_k.
struct MsaOptions {
    int64_t block_size = 64;  // Bk
    SelectionRule rule{.top_k = 8};
    bool sink = false;     // a learnable logit per query head (app:prelim-learnable-sink)
    bool kl = true;        // the KL loss (eq:msa-kl)
    double kl_weight = 1;  // lambda
    /// The Index Branch has values and an output of its own: the layer gives W_o O + W_o_idx O_idx
    /// (app:prelim-grad-source). We read it as one head per group: V_idx = X W_v_idx [N, 1, didx]
    /// is shared by the groups like K_idx, O_idx [N, Hkv, didx] is on the support of the Main
    /// Branch, and W_o_idx is [D, Hkv didx]. The paper types O_idx as N x Hq x dh, which its Hkv
    /// index heads cannot fill.
    bool value_head = false;
    /// Cuts the gradient of the KL loss from index_q and index_k into the layer's input
    /// (eq:msa-detach).
    bool detach = true;
    /// Also cuts there the gradient of the LM loss, which comes through the value head. The
    /// gradient through V_idx is never cut.
    bool detach_lm = false;
    bool kl_full_support = false;  // after the warm-up, too
    /// A control: the teacher's q and k are those of the batch's next sequence, at the same
    /// position.
    bool other_teacher = false;
};

/// Standard deviation of a matrix's initial normal values. Matrices whose output is added to the
/// residual stream start smaller, for 2 additions per layer (GPT-2).
inline constexpr double kInitStd = 0.02;
double added_init_std(const ModelSizes& sizes);

struct ModelConfig {
    ModelSizes sizes;
    std::vector<Attention> attention{Attention::msa};  // of every layer; one stands for all
    MsaOptions msa;

    Attention attention_of(int64_t layer) const {
        return attention.size() == 1 ? attention.front() : attention[static_cast<size_t>(layer)];
    }
    bool attends(Attention kind) const;  // does some layer?
    bool has_index() const { return attends(Attention::msa) || attends(Attention::passive); }
    /// Throws InputError naming the value and the rule it breaks.
    void validate() const;
    /// The problem of a layer's Main Branch on a batch, and that of the value head, with one head
    /// per group.
    Problem problem(const PackedBatch& batch) const;
    Problem value_head_problem(const PackedBatch& batch) const;
};

}  // namespace msa::train
