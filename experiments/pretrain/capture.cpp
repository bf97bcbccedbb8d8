// SPDX-License-Identifier: MIT
#include "experiments/pretrain/capture.h"

#include <algorithm>
#include <cmath>

#include "core/io/activations.h"
#include "experiments/pretrain/probe.h"
#include "experiments/programs.h"

namespace msa::experiments::pretrain {
namespace {

using io::Field;

io::LayerInfo layer_info(train::Model& model, int64_t layer) {
    const train::ModelConfig& config = model.config();
    const train::ModelSizes& s = config.sizes;
    const train::Attention kind = config.attention_of(layer);
    const io::RopeState state = s.rotary_dim > 0 ? io::RopeState::post_rope : io::RopeState::none;
    io::LayerInfo info;
    info.layer = layer;
    info.query_heads = s.query_heads;
    info.kv_heads = s.kv_heads;
    info.head_dim = s.head_dim;
    info.index_dim = train::has_index(kind) ? s.index_dim : 0;
    info.model_dim = s.model_dim;
    info.q_state = info.k_state = state;
    info.softmax_scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
    info.element = Element::f32;
    if (s.rotary_dim > 0) {
        info.rotary_dim = s.rotary_dim;
        info.rope_theta = s.rope_theta;
    }
    if (train::has_index(kind)) {
        info.own_sparse = true;
        info.own_block_size = config.msa.block_size;
        info.own_top_k = config.msa.rule.top_k;
    }
    if (const View<const float, 1> there = model.sinks(layer)) {
        const Tensor<float, 1> sinks = model.ops().backend().download(there);
        info.own_attention["sinks"] = {sinks.data(), sinks.data() + sinks.size()};
    }
    return info;
}

}  // namespace

void write_capture(const std::filesystem::path& path, train::Model& model, const Sequences& text,
                   bool sparse, const std::string& model_config) {
    io::ActivationsInfo info;
    info.model_id = info.producer = kProgram.name;
    info.model_config = model_config;
    info.cu_seqlens = text.cu_seqlens;
    info.has_tokens = true;
    for (int64_t layer = 0; layer < model.config().sizes.layers; ++layer)
        info.layers.push_back(layer_info(model, layer));
    io::ActivationsWriter to(path, info, true);
    to.write_tokens(text.tokens);
    const Uploaded batch(model.ops().backend(), text);
    model.forward(batch.batch(), sparse);
    for (const io::LayerInfo& layer : info.layers) {
        const train::AttentionState& s = model.attention(layer.layer);
        const In<2> x = s.h.in();
        const auto write = [&](Field field, In<3> values) {
            to.write(layer.layer, field, 0, 0, on_host(model.ops(), values));
        };
        write(Field::x, train::reshaped<3>(x, {x.shape()[0], 1, x.shape()[1]}));
        write(Field::q, s.q);
        write(Field::k, s.k);
        write(Field::v, s.v);
        if (layer.index_dim == 0) continue;
        write(Field::index_q, s.index_q);
        write(Field::index_k, s.index_k);
    }
    to.finish();
}

}  // namespace msa::experiments::pretrain
