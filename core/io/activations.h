// SPDX-License-Identifier: MIT
// Reader and writer of `msa-activations` version 1 (data/FORMAT.md): captured Q, K, V and hidden
// states of chosen layers. Streams by layer, head and token range; values are float in memory.
//
// Every error is an InputError that names the file, the dataset or attribute, the value and the
// rule; a refusal of the operating system is a SystemError.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/problem.h"
#include "core/tensor.h"

namespace msa::io {

/// Has RoPE been applied to what is stored? `none`: the layer has no RoPE.
enum class RopeState : uint8_t { post_rope, pre_rope, none };
const char* to_string(RopeState);

/// The per-token datasets of a layer.
enum class Field : uint8_t { x, q, k, v, index_q, index_k, dsa_q, dsa_k, dsa_w };
inline constexpr Field kFields[] = {Field::x,     Field::q,       Field::k,
                                    Field::v,     Field::index_q, Field::index_k,
                                    Field::dsa_q, Field::dsa_k,   Field::dsa_w};
const char* to_string(Field);

inline constexpr const char* kOwnAttention[] = {"sliding_window", "attention_chunk", "softcap",
                                                "sinks"};

/// A layer group: sizes from the shapes of its datasets, the rest from its attributes, which are
/// valid where they are present (data/FORMAT.md).
struct LayerInfo {
    int64_t layer = 0;        // number in the model, from 0
    int64_t query_heads = 0;  // Hq
    int64_t kv_heads = 0;     // Hkv
    int64_t head_dim = 0;     // dh
    int64_t index_dim = 0;    // didx; 0: no index_q, index_k
    int64_t model_dim = 0;    // d_model; 0: no x
    int64_t dsa_heads = 0;    // of DSA's indexer; 0: no dsa_q, dsa_k, dsa_w
    int64_t dsa_dim = 0;      // and channels of each
    RopeState q_state = RopeState::post_rope;
    RopeState k_state = RopeState::post_rope;
    double softmax_scale = 0;
    std::optional<int64_t> rotary_dim;
    std::optional<double> rope_theta;   // of plain RoPE
    std::string rope_scaling;           // of another RoPE: the model's parameters, JSON text
    std::vector<double> rope_inv_freq;  // and its frequencies [rotary_dim/2], or none
    std::optional<double> rope_attention_factor;  // and what cosine and sine are multiplied by
    bool rope_interleaved = false;  // it turns channels 2c and 2c+1; else c and c + rotary_dim/2
    /// The model attends to selected keys only (attribute own_attention = "sparse").
    bool own_sparse = false;
    /// Block size and k of the Index Branch that the layer has: the model's own, or a fitted one.
    std::optional<int64_t> own_block_size, own_top_k;
    /// What the model's own attention adds to plain causal attention, by attribute (those of
    /// kOwnAttention). layer_problem and layer_sinks take over all but attention_chunk.
    std::map<std::string, std::vector<double>> own_attention;
    Element element = Element::f16;  // storage: f16, bf16 or f32, one for the whole layer

    bool has(Field) const;
    /// Heads of a field: Hq for q, Hkv for k, v, index_q, dsa_heads for dsa_q, 1 for the others.
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
};

/// The square problem of a layer: every token is a query and a key of its sequence. With the
/// layer's window and soft cap, and the sizes of its DSA indexer.
Problem layer_problem(const ActivationsInfo&, const LayerInfo&, int64_t block_size);
/// [Hq] The layer's learnable sinks, as in AttentionInput; absent without.
Tensor<float, 1> layer_sinks(const LayerInfo&);

class ActivationsReader {
public:
    /// Opens and checks everything but the values (of which it looks at one token, to find K and V
    /// that were repeated to the query heads).
    explicit ActivationsReader(const std::filesystem::path& path);
    /// The same of a file in memory, which `name` stands for in messages. Keeps a copy.
    ActivationsReader(const std::filesystem::path& name, std::span<const uint8_t> bytes);
    ~ActivationsReader();
    ActivationsReader(ActivationsReader&&) noexcept;
    ActivationsReader& operator=(ActivationsReader&&) noexcept;

    const std::filesystem::path& path() const;
    const ActivationsInfo& info() const;
    /// Throws InputError naming the layers there are.
    const LayerInfo& layer(int64_t number) const;

    /// Tokens [range.begin, range.end) of heads [first_head, first_head + head_count) into
    /// to [n, head_count, channels]. A NaN or Inf is an InputError with the count in the whole
    /// dataset and the first position.
    void read(int64_t layer, Field, QueryRange range, int64_t first_head, View<float, 3> to) const;
    /// All heads of a token range: [n, heads, channels].
    Tensor<float, 3> read(int64_t layer, Field, QueryRange range) const;
    /// All heads of the given tokens (ascending): [n, heads, channels].
    Tensor<float, 3> gather(int64_t layer, Field, std::span<const int64_t> tokens) const;
    /// int32 [N]; throws InputError when the file has none.
    std::vector<int32_t> tokens() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Throws InputError when q or k of the layer is stored before RoPE.
void require_post_rope(const ActivationsReader& file, int64_t layer);

class ActivationsWriter {
public:
    /// Writes to `path`.partial until finish() renames it; an abandoned writer removes it.
    /// info.layers are created empty, to be filled by write(). Refuses an existing `path` unless
    /// `overwrite`, and always what is no regular file.
    ActivationsWriter(std::filesystem::path path, const ActivationsInfo& info, bool overwrite);
    ~ActivationsWriter();
    ActivationsWriter(const ActivationsWriter&) = delete;
    ActivationsWriter& operator=(const ActivationsWriter&) = delete;

    /// values [n, head_count, channels] to tokens from first_token, heads from first_head;
    /// rounded to nearest even.
    void write(int64_t layer, Field, int64_t first_token, int64_t first_head,
               View<const float, 3> values);
    void write_tokens(std::span<const int32_t> tokens);
    void finish();

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace msa::io
