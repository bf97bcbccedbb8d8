// SPDX-License-Identifier: MIT
// A model and a batch that are small enough to be trained in a moment.
#pragma once

#include "core/random.h"
#include "core/registry.h"
#include "core/train/trainer.h"

namespace msa::train {

inline constexpr uint64_t kSeed = 7;

inline ModelConfig nano(Attention attention) {
    ModelConfig c;
    c.sizes = {.vocabulary = 29,
               .layers = 2,
               .model_dim = 32,
               .hidden_dim = 48,
               .query_heads = 4,
               .kv_heads = 2,
               .head_dim = 16,
               .rotary_dim = 8,
               .rope_theta = 1e3,
               .max_positions = 64,
               .index_dim = 16,
               .index_rotary = 8};
    c.attention = {attention};
    c.msa.block_size = 8;
    c.msa.rule.top_k = 3;
    return c;
}

/// Two sequences of different lengths.
struct Sample {
    PackedBatch layout{{0, 50, 91}, {0, 50, 91}};
    std::vector<int32_t> tokens, targets, positions = token_positions(layout);
    Sample() {
        for (int64_t i = 0; i < layout.queries(); ++i)
            tokens.push_back(static_cast<int32_t>(mix(kSeed, i) % 29));
        targets = next_tokens(tokens, layout);
    }
    Batch batch() const {
        const auto view = [](const std::vector<int32_t>& list) {
            return View<const int32_t, 1>(list.data(), {std::ssize(list)});
        };
        return {layout, view(tokens), view(targets), view(positions)};
    }
};

inline Model make(const ModelConfig& config, std::span<const float> start = {}, int threads = 2) {
    return {config, make_cpu_ops(make_backend("cpu", {.threads = threads})), kSeed, start};
}

/// On the host, of one pass.
inline std::vector<float> gradient_of(Model& model, const Batch& batch, bool sparse) {
    model.weights().clear_gradient();
    model.forward_backward(batch, sparse);
    const View<const float, 1> g = std::as_const(model.weights()).gradient();
    return {g.data(), g.data() + g.size()};
}

/// A list of floats in memory of the model's backend.
inline std::vector<float> on_host(Model& model, View<const float, 1> list) {
    const Tensor<float, 1> host = model.ops().backend().download(list);
    return {host.data(), host.data() + host.size()};
}
inline std::vector<float> values_of(Model& model) {
    return on_host(model, std::as_const(model.weights()).values());
}

/// Starting values that are large enough for every gradient to be well above rounding.
inline std::vector<float> lively(const ModelConfig& config) {
    Model model = make(config);
    std::vector<float> values = model.parameters().start(kSeed);
    for (const Parameter& p : model.parameters().all())
        for (int64_t i = 0; i < p.size(); ++i) {
            float& value = values[static_cast<size_t>(p.offset + i)];
            value = p.init_std > 0 ? value * 8
                                   : value + static_cast<float>(0.1 * random_normal(mix(3, i)));
        }
    return values;
}

}  // namespace msa::train
