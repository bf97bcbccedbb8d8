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

inline std::vector<float> values_of(Model& model) {
    const View<const float, 1> all = std::as_const(model.weights()).values();
    return {all.data(), all.data() + all.size()};
}

}  // namespace msa::train
