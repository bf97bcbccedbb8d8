// SPDX-License-Identifier: MIT
// The metadata of a file of activations and of each layer: sizes, RoPE, and the model's own
// attention (data/FORMAT.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/element.h"
#include "core/rope.h"
#include "core/select/learned_operands.h"

namespace msa::io {

/// Whether RoPE was applied before storing. `none`: the layer has no RoPE.
enum class RopeState : uint8_t { post_rope, pre_rope, none };
const char* to_string(RopeState);

/// The datasets of a layer. They have one row per token, gate_k one per block, qsa_k one per piece.
enum class Field : uint8_t {
    x,
    q,
    k,
    v,
    index_q,
    index_k,
    dsa_q,
    dsa_k,
    dsa_w,
    gate_q,
    gate_k,
    qsa_q,
    qsa_k
};
inline constexpr Field kFields[] = {Field::x,       Field::q,       Field::k,      Field::v,
                                    Field::index_q, Field::index_k, Field::dsa_q,  Field::dsa_k,
                                    Field::dsa_w,   Field::gate_q,  Field::gate_k, Field::qsa_q,
                                    Field::qsa_k};
const char* to_string(Field);
/// Whether the field is an operand of an indexer.
constexpr bool is_of_index(Field field) {
    return field != Field::x && field != Field::q && field != Field::k && field != Field::v;
}
/// What the rows of a field are: "blocks" for gate_k, "pieces" for qsa_k, otherwise "tokens".
const char* rows_of(Field);

inline constexpr const char* kOwnAttention[] = {"sliding_window", "attention_chunk", "softcap",
                                                "sinks"};

/// A layer group: sizes from the shapes of its datasets, the rest from its attributes
/// (data/FORMAT.md). Attributes that are present are valid.
struct LayerInfo {
    int64_t layer = 0;        // number in the model, from 0
    int64_t query_heads = 0;  // Hq
    int64_t kv_heads = 0;     // Hkv
    int64_t head_dim = 0;     // dh
    int64_t index_dim = 0;    // didx; 0: no index_q, index_k
    int64_t model_dim = 0;    // d_model; 0: no x
    LearnedSizes learned;     // of dsa_q, dsa_k, dsa_w, gate_q, gate_k, qsa_q and qsa_k
    RopeState q_state = RopeState::post_rope;
    RopeState k_state = RopeState::post_rope;
    double softmax_scale = 0;
    std::optional<int64_t> rotary_dim;
    std::optional<double> rope_theta;   // of plain RoPE
    std::string rope_scaling;           // of scaled RoPE: the model's parameters, JSON text
    std::vector<double> rope_inv_freq;  // of scaled RoPE: frequencies [rotary_dim/2], or empty
    std::optional<double> rope_attention_factor;  // factor on cosine and sine
    bool rope_interleaved = false;  // pair c is channels 2c, 2c+1; else c, c + rotary_dim/2
    /// The model attends to selected keys only (attribute own_attention = "sparse").
    bool own_sparse = false;
    /// Block size and k of the layer's Index Branch, the model's own or a fitted one.
    std::optional<int64_t> own_block_size, own_top_k;
    /// Features of the model's own attention beyond plain causal attention, by attribute name
    /// (kOwnAttention). layer_problem and layer_sinks use all but attention_chunk.
    std::map<std::string, std::vector<double>> own_attention;
    Element element = Element::f16;  // storage: f16, bf16 or f32, one for the whole layer

    /// Keys that a query attends to at most; nothing without a sliding window.
    std::optional<int64_t> window() const;

    bool has(Field) const;
    /// Heads of a field: Hq for q, Hkv for k, v, index_q, gate_q, gate_k, learned.dsa_heads for
    /// dsa_q, learned.qsa_heads for qsa_q, 1 for the others.
    int64_t heads(Field) const;
    /// Channels of one head of a field.
    int64_t channels(Field) const;
};

struct ActivationsInfo {
    std::string model_id, model_config, producer;  // model_config is JSON text
    std::vector<int64_t> cu_seqlens{0};            // [S+1]
    std::vector<LayerInfo> layers;                 // by ascending number
    bool has_tokens = false;

    int64_t tokens() const { return cu_seqlens.back(); }  // N
    /// Rows of a field: N; of gate_k the blocks of all sequences, of qsa_k their complete pieces.
    int64_t rows(const LayerInfo&, Field) const;
};

/// The same for the sequences of `cu_seqlens`.
int64_t row_count(std::span<const int64_t> cu_seqlens, const LayerInfo&, Field);

/// The layer's RoPE from its attributes rope_inv_freq, or rotary_dim and rope_theta; nothing if
/// they are absent.
std::optional<RopePairs> stored_rope(const LayerInfo&);

}  // namespace msa::io
