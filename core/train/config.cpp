// SPDX-License-Identifier: MIT
#include "core/train/config.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace msa::train {

double added_init_std(const ModelSizes& sizes) {
    return kInitStd / std::sqrt(2.0 * static_cast<double>(sizes.layers));
}

bool ModelConfig::attends(Attention kind) const {
    return std::find(attention.begin(), attention.end(), kind) != attention.end();
}

void ModelConfig::validate() const {
    const ModelSizes& s = sizes;
    const auto positive = [](const char* name, int64_t value) {
        require(value >= 1, name, " is ", value, ", must be at least 1");
    };
    positive("vocabulary", s.vocabulary);
    positive("layers", s.layers);
    positive("model_dim", s.model_dim);
    positive("hidden_dim", s.hidden_dim);
    positive("max_positions", s.max_positions);
    require(attention.size() == 1 || std::ssize(attention) == s.layers, "attention is given for ",
            attention.size(), " layers, must be given once, or for each of the ", s.layers);
    problem(PackedBatch()).validate();
    const auto rotary = [](const char* name, int64_t value, const char* of, int64_t width) {
        require(value >= 0 && value % 2 == 0 && value <= width, name, " is ", value,
                ", must be even, from 0 to ", of, " = ", width);
    };
    rotary("rotary_dim", s.rotary_dim, "head_dim", s.head_dim);
    require(s.rope_theta > 0, "rope_theta is ", s.rope_theta, ", must be positive");
    require(
        !attends(Attention::window) || msa.rule.top_k >= 2, "top_k is ", msa.rule.top_k,
        ", must be at least 2 for a window: the first block, and k - 1 blocks of newest tokens");
    if (!has_index()) return;
    require(s.index_dim >= kMinIndexDim && s.index_dim <= kMaxIndexDim, "index_dim is ",
            s.index_dim, ", must be from ", kMinIndexDim, " to ", kMaxIndexDim);
    rotary("index_rotary", s.index_rotary, "index_dim", s.index_dim);
    msa.rule.validate();
    require(msa.kl || msa.value_head,
            "neither the KL loss nor the value head is on, so nothing trains the Index Branch");
    require(!attends(Attention::passive) || !msa.value_head,
            "a layer with a passive Index Branch has no value head, which would be a use of it");
    require(msa.kl_weight >= 0, "kl_weight is ", msa.kl_weight, ", must not be negative");
}

Problem ModelConfig::problem(const PackedBatch& batch) const {
    Problem p;
    p.batch = batch;
    p.query_heads = sizes.query_heads;
    p.kv_heads = sizes.kv_heads;
    p.head_dim = sizes.head_dim;
    p.index_dim = has_index() ? sizes.index_dim : 0;
    p.block_size = msa.block_size;
    return p;
}

Problem ModelConfig::value_head_problem(const PackedBatch& batch) const {
    Problem p = problem(batch);
    p.query_heads = p.kv_heads;
    p.head_dim = p.index_dim;
    return p;
}

}  // namespace msa::train
