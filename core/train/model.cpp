// SPDX-License-Identifier: MIT
#include "core/train/model.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace msa::train {

double Losses::total(const ModelConfig& config) const {
    return lm + config.msa.kl_weight * std::accumulate(kl.begin(), kl.end(), 0.0);
}

ModelConfig Model::checked(const ModelConfig& config) {
    config.validate();
    return config;
}

Model::Model(const ModelConfig& config, std::unique_ptr<Ops> ops, uint64_t seed,
             std::span<const float> start)
    : config_(checked(config)), ops_(std::move(ops)) {
    const ModelSizes& s = config_.sizes;
    embedding_ = parameters_.add({.name = kEmbedding,
                                  .rows = s.vocabulary,
                                  .columns = s.model_dim,
                                  .init_std = kInitStd,
                                  .decays = true});
    for (int64_t layer = 0; layer < s.layers; ++layer)
        layers_.push_back(
            {AttentionLayer(config_, layer, parameters_), FeedForward(s, layer, parameters_)});
    norm_ = parameters_.add({.name = "norm.weight", .rows = 1, .columns = s.model_dim, .start = 1});
    output_ = parameters_.add({.name = "lm_head.weight",
                               .rows = s.vocabulary,
                               .columns = s.model_dim,
                               .init_std = kInitStd,
                               .decays = true});
    const std::vector<float> drawn = start.empty() ? parameters_.start(seed) : std::vector<float>();
    weights_ = std::make_unique<Weights>(parameters_, *ops_, start.empty() ? drawn : start);
    rope_ = rope_table(ops_->backend(), s.max_positions, s.rotary_dim, s.rope_theta);
    if (config_.has_index())
        index_rope_ = rope_table(ops_->backend(), s.max_positions, s.index_rotary, s.rope_theta);
}

void Model::make_room(int64_t n) {
    if (run_.tokens == n) return;
    Backend& backend = ops_->backend();
    const auto make = [&](int64_t width) {
        return Buffer<2>(backend, ops_->element(), {n, width});
    };
    run_ = {};
    run_.tokens = n;
    for (const Layer& layer : layers_)
        run_.layers.push_back(
            {layer.attention.make_state(*ops_, n), layer.feed_forward.make_state(*ops_, n)});
    run_.attention = layers_.front().attention.make_scratch(*ops_, n);
    run_.feed_forward = layers_.front().feed_forward.make_scratch(*ops_, n);
    run_.x = make(config_.sizes.model_dim);
    run_.h = make(config_.sizes.model_dim);
    run_.d_x = make(config_.sizes.model_dim);
    run_.logits = make(config_.sizes.vocabulary);
    run_.losses = backend.make<float, 1>({n});
}

void Model::place_window(const PackedBatch& layout) {
    if (!config_.attends(Attention::window)) return;
    if (!window_ || !(window_->layout() == layout))
        window_ = std::make_unique<WindowAttention>(*ops_, config_.problem(layout),
                                                    config_.msa.rule.top_k);
    for (LayerState& layer : run_.layers) layer.attention.window = window_.get();
}

void Model::place_other_teacher(const PackedBatch& layout) {
    if (!config_.msa.other_teacher || run_.teachers == layout) return;
    const std::vector<int64_t>& cu = layout.cu_seqlens_q();
    const int64_t n = cu.back();
    require(cu.size() > 2, "a batch has one sequence: the KL teacher of another one needs several");
    for (size_t s = 1; s < cu.size(); ++s)
        require(cu[s] - cu[s - 1] == cu[1], "sequences have ", cu[1], " and ", cu[s] - cu[s - 1],
                " tokens: the KL teacher of another one needs sequences of one length");
    Tensor<int32_t, 1> next({n});
    for (int64_t i = 0; i < n; ++i) next(i) = static_cast<int32_t>((i + cu[1]) % n);
    run_.attention.next_sequence = ops_->backend().upload(next.view());
    run_.teachers = layout;
}

void Model::run_forward(const Batch& batch, bool sparse) {
    make_room(batch.tokens.size());
    place_window(batch.layout);
    Weights& w = *weights_;
    const Pass pass{*ops_, w, batch, sparse};
    ops_->embed(batch.tokens, w.matrix(embedding_), run_.x);
    for (size_t l = 0; l < layers_.size(); ++l) {
        layers_[l].attention.forward(pass, rope_, index_rope_, run_.layers[l].attention, run_.x);
        layers_[l].feed_forward.forward(*ops_, w, run_.layers[l].feed_forward, run_.x);
    }
    ops_->rms_norm(run_.x, w.vector(norm_), run_.h);
    ops_->linear(run_.h, w.matrix(output_), run_.logits, Sum::set);
}

View<const float, 1> Model::forward(const Batch& batch, bool sparse) {
    run_forward(batch, sparse);
    ops_->cross_entropy(run_.logits, batch.targets, run_.losses, 1, false);
    return run_.losses;
}

int64_t Model::count_targets(const Batch& batch) {
    const Tensor<int32_t, 1> targets = ops_->backend().download(batch.targets);
    return std::count_if(targets.data(), targets.data() + targets.size(),
                         [](int32_t target) { return target != Ops::kNoTarget; });
}

Losses Model::forward_backward(const Batch& batch, bool sparse, bool attached) {
    // Before the forward pass is queued, which a copy to the host would wait for.
    const int64_t targets =
        std::max<int64_t>(1, batch.step_tokens > 0 ? batch.step_targets : count_targets(batch));
    run_forward(batch, sparse);
    place_other_teacher(batch.layout);
    Weights& w = *weights_;
    const Pass pass{*ops_, w, batch, sparse, attached};
    ops_->cross_entropy(run_.logits, batch.targets, run_.losses,
                        static_cast<float>(1.0 / static_cast<double>(targets)), true);
    ops_->linear_grad_weight(run_.logits, run_.h, w.matrix_gradient(output_));
    ops_->linear_grad_input(run_.logits, w.matrix(output_), run_.h, Sum::set);
    ops_->rms_norm_grad(run_.x, w.vector(norm_), run_.h, run_.d_x, w.vector_gradient(norm_),
                        Sum::set);
    for (size_t l = layers_.size(); l-- > 0;) {
        layers_[l].feed_forward.backward(*ops_, w, run_.layers[l].feed_forward, run_.feed_forward,
                                         run_.d_x);
        layers_[l].attention.backward(pass, rope_, index_rope_, run_.layers[l].attention,
                                      run_.attention, run_.d_x);
    }
    ops_->embed_grad(batch.tokens, run_.d_x, w.matrix_gradient(embedding_));

    Losses losses;
    losses.lm = ops_->total(run_.losses) / static_cast<double>(targets);
    if (!config_.has_index() || !config_.msa.kl) return losses;
    for (LayerState& layer : run_.layers) {
        if (layer.attention.kl.data() == nullptr) {
            losses.kl.push_back(0);
            continue;
        }
        Tensor<double, 2>& kl = layer.attention.kl;
        const int64_t queries = batch.step_tokens > 0 ? batch.step_tokens : kl.extent(0);
        losses.kl.push_back(ops_->total(as_list(In<2>(kl))) /
                            static_cast<double>(queries * kl.extent(1)));
    }
    return losses;
}

const AttentionState& Model::attention(int64_t layer) const {
    return run_.layers[static_cast<size_t>(layer)].attention;
}

View<const float, 1> Model::sinks(int64_t layer) const {
    return layers_[static_cast<size_t>(layer)].attention.sinks(*weights_);
}

std::vector<int32_t> next_tokens(std::span<const int32_t> tokens, const PackedBatch& layout) {
    std::vector<int32_t> targets(tokens.size(), Ops::kNoTarget);
    const std::vector<int64_t>& cu = layout.cu_seqlens_q();
    for (size_t s = 1; s < cu.size(); ++s)
        for (int64_t i = cu[s - 1]; i + 1 < cu[s]; ++i)
            targets[static_cast<size_t>(i)] = tokens[static_cast<size_t>(i + 1)];
    return targets;
}

std::vector<int32_t> token_positions(const PackedBatch& layout) {
    std::vector<int32_t> positions;
    const std::vector<int64_t>& cu = layout.cu_seqlens_q();
    for (size_t s = 1; s < cu.size(); ++s)
        for (int64_t i = cu[s - 1]; i < cu[s]; ++i)
            positions.push_back(static_cast<int32_t>(i - cu[s - 1]));
    return positions;
}

}  // namespace msa::train
