// SPDX-License-Identifier: MIT
// What the reader and the writer of activations share: fields, sizes, names.
#include "core/io/activations.h"

#include <algorithm>

#include "core/indexer/qsa_kl.h"
#include "core/io/file_error.h"

namespace msa::io {

const char* to_string(RopeState state) {
    switch (state) {
        case RopeState::post_rope: return "post_rope";
        case RopeState::pre_rope: return "pre_rope";
        case RopeState::none: return "none";
    }
    return "?";
}

const char* to_string(Field field) {
    switch (field) {
        case Field::x: return "x";
        case Field::q: return "q";
        case Field::k: return "k";
        case Field::v: return "v";
        case Field::index_q: return "index_q";
        case Field::index_k: return "index_k";
        case Field::dsa_q: return "dsa_q";
        case Field::dsa_k: return "dsa_k";
        case Field::dsa_w: return "dsa_w";
        case Field::gate_q: return "gate_q";
        case Field::gate_k: return "gate_k";
        case Field::qsa_q: return "qsa_q";
        case Field::qsa_k: return "qsa_k";
    }
    return "?";
}

const char* rows_of(Field field) {
    if (field == Field::gate_k) return "blocks";
    return field == Field::qsa_k ? "pieces" : "tokens";
}

std::optional<int64_t> LayerInfo::window() const {
    const auto found = own_attention.find("sliding_window");
    if (found == own_attention.end()) return std::nullopt;
    return static_cast<int64_t>(found->second.front());
}

bool LayerInfo::has(Field field) const {
    switch (field) {
        case Field::x: return model_dim > 0;
        case Field::index_q:
        case Field::index_k: return index_dim > 0;
        case Field::dsa_q:
        case Field::dsa_k:
        case Field::dsa_w: return learned.dsa_heads > 0;
        case Field::gate_q:
        case Field::gate_k: return learned.gate_dim > 0;
        case Field::qsa_q:
        case Field::qsa_k: return learned.qsa_heads > 0;
        default: return true;
    }
}

int64_t LayerInfo::heads(Field field) const {
    switch (field) {
        case Field::q: return query_heads;
        case Field::k:
        case Field::v:
        case Field::index_q:
        case Field::gate_q:
        case Field::gate_k: return kv_heads;
        case Field::dsa_q: return learned.dsa_heads;
        case Field::qsa_q: return learned.qsa_heads;
        default: return 1;
    }
}

int64_t LayerInfo::channels(Field field) const {
    switch (field) {
        case Field::x: return model_dim;
        case Field::index_q:
        case Field::index_k: return index_dim;
        case Field::dsa_q:
        case Field::dsa_k: return learned.dsa_dim;
        case Field::dsa_w: return learned.dsa_heads;
        case Field::gate_q:
        case Field::gate_k: return learned.gate_dim;
        case Field::qsa_q:
        case Field::qsa_k: return learned.qsa_dim;
        default: return head_dim;
    }
}

std::optional<RopePairs> stored_rope(const LayerInfo& layer) {
    if (layer.k_state == RopeState::none || layer.rotary_dim == 0) return RopePairs{};
    RopePairs rope{layer.rope_inv_freq, layer.rope_interleaved};
    if (rope.frequencies.empty()) {
        if (!layer.rotary_dim || !layer.rope_theta) return std::nullopt;
        rope.frequencies = plain_frequencies(*layer.rotary_dim, *layer.rope_theta);
    }
    return rope;
}

int64_t row_count(std::span<const int64_t> cu_seqlens, const LayerInfo& layer, Field field) {
    if (field == Field::qsa_k) return piece_starts(cu_seqlens, layer.learned.qsa_compress).back();
    if (field != Field::gate_k) return cu_seqlens.back();
    int64_t blocks = 0;
    for (size_t s = 1; s < cu_seqlens.size(); ++s)
        blocks += ceil_div(cu_seqlens[s] - cu_seqlens[s - 1], layer.learned.gate_block_size);
    return blocks;
}

int64_t ActivationsInfo::rows(const LayerInfo& layer, Field field) const {
    return row_count(cu_seqlens, layer, field);
}

Problem layer_problem(const ActivationsInfo& info, const LayerInfo& layer, int64_t block_size) {
    Problem p = square_problem(0, layer.query_heads, layer.kv_heads, layer.head_dim,
                               layer.index_dim, block_size);
    p.batch = PackedBatch(info.cu_seqlens, info.cu_seqlens);
    p.softmax_scale_override = layer.softmax_scale;
    p.window = layer.window();
    if (const auto cap = layer.own_attention.find("softcap"); cap != layer.own_attention.end())
        p.softcap = cap->second.front();
    return p;
}

Tensor<float, 1> layer_sinks(const LayerInfo& layer) {
    const auto found = layer.own_attention.find("sinks");
    if (found == layer.own_attention.end()) return {};
    Tensor<float, 1> sinks({std::ssize(found->second)});
    std::transform(found->second.begin(), found->second.end(), sinks.data(),
                   [](double sink) { return static_cast<float>(sink); });
    return sinks;
}

void require_post_rope(const ActivationsReader& file, int64_t number) {
    const LayerInfo& layer = file.layer(number);
    for (const auto& [name, state] :
         {std::pair{"q_state", layer.q_state}, std::pair{"k_state", layer.k_state}})
        if (state == RopeState::pre_rope)
            throw FileError(concat(file.name(), ": /layers/", number, " ", name,
                                   " is pre_rope; attention needs what the model multiplies, after "
                                   "RoPE (post_rope, or none for a layer without RoPE)"),
                            FileProblem::before_rope, file.captures().front().path.string());
}

}  // namespace msa::io
