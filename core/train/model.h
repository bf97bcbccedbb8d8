// SPDX-License-Identifier: MIT
// A language model: embedding, layers of attention and feed-forward, norm, output. Forward and
// backward are written out; there is no graph of operations.
#pragma once

#include <optional>
#include <vector>

#include "core/train/attention_layer.h"
#include "core/train/feed_forward.h"

namespace msa::train {

/// The parameter whose rows are looked up, not multiplied.
inline constexpr const char* kEmbedding = "embed_tokens.weight";

/// Losses of a step. LM: mean over the tokens with a target. KL: mean over queries and groups
/// (eq:msa-kl).
struct Losses {
    double lm = 0;           // nats per token
    std::vector<double> kl;  // [layers], 0 without an Index Branch; empty without a KL loss
    /// LM + lambda * the sum over layers of KL: what is minimised.
    double total(const ModelConfig& config) const;
};

class Model {
public:
    /// Throws InputError if the configuration is not valid. `start`: initial values of
    /// parameters(), or empty for those of `seed`.
    Model(const ModelConfig& config, std::unique_ptr<Ops> ops, uint64_t seed,
          std::span<const float> start = {});

    const ModelConfig& config() const { return config_; }
    const ParameterList& parameters() const { return parameters_; }
    Weights& weights() { return *weights_; }
    Ops& ops() { return *ops_; }

    /// The loss of each token [n] (0 without a target), in the backend's memory and valid until the
    /// next call. `sparse`: the indexer's warm-up is over.
    View<const float, 1> forward(const Batch& batch, bool sparse);
    /// Forward and backward: adds the gradient of the total loss to that of weights(). If the batch
    /// is one worker's share of a step, losses and gradient are its part of the sum over the
    /// workers. `attached`: a KL loss that is not detached reaches the backbone.
    Losses forward_backward(const Batch& batch, bool sparse, bool attached = true);
    /// Tokens with a target; waits for the calls so far.
    int64_t count_targets(const Batch& batch);

    /// The layer's state of the last forward pass.
    const AttentionState& attention(int64_t layer) const;
    /// [Hq] The learnable sinks of a layer; absent without.
    View<const float, 1> sinks(int64_t layer) const;
    /// [n, V] of the last forward(); after forward_backward(), their gradient.
    In<2> logits() const { return run_.logits; }

private:
    struct Layer {
        AttentionLayer attention;
        FeedForward feed_forward;
    };
    struct LayerState {
        AttentionState attention;
        FeedForwardState feed_forward;
    };
    /// The memory of a batch of n tokens.
    struct Run {
        int64_t tokens = -1;
        std::vector<LayerState> layers;
        AttentionScratch attention;
        FeedForwardScratch feed_forward;
        Buffer<2> x, h, logits, d_x;
        Tensor<float, 1> losses;
        std::optional<PackedBatch> teachers;  // whose next_sequence `attention` has
    };

    static ModelConfig checked(const ModelConfig& config);
    void make_room(int64_t tokens);
    void run_forward(const Batch& batch, bool sparse);
    /// Gives all layers with a window the WindowAttention of this layout.
    void place_window(const PackedBatch& layout);
    /// InputError unless the batch has several sequences, of one length.
    void place_other_teacher(const PackedBatch& layout);

    ModelConfig config_;
    std::unique_ptr<Ops> ops_;
    ParameterList parameters_;
    ParameterIndex embedding_ = 0, norm_ = 0, output_ = 0;
    std::vector<Layer> layers_;
    std::unique_ptr<Weights> weights_;
    Tensor<float, 3> rope_, index_rope_;
    std::unique_ptr<WindowAttention> window_;
    Run run_;
};

/// The targets of packed sequences of tokens: the next token of the same sequence.
std::vector<int32_t> next_tokens(std::span<const int32_t> tokens, const PackedBatch& layout);
/// The positions of all tokens in their sequences.
std::vector<int32_t> token_positions(const PackedBatch& layout);

}  // namespace msa::train
