// SPDX-License-Identifier: MIT
// The data of a fit: one layer as one packed problem, and the split of its queries into training
// and held-out ones.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/indexer/index_branch.h"
#include "core/io/activations.h"
#include "experiments/fit/options.h"

namespace msa::experiments::fit {

/// One layer in memory.
struct TrainingLayer {
    io::LayerInfo info;
    Problem problem;                 // every token is a query and a key; index_dim as asked
    std::vector<int64_t> positions;  // [N] in their sequences
    /// [N, 1, d_model], or [N, 1, Hq dh]: q before RoPE; absent where the indexer is another
    /// layer's
    Tensor<float, 3> x;
    Tensor<float, 3> q, k, v;  // as in core/problem.h
    std::vector<double> rope;  // frequencies of the model's RoPE; empty: it has none
    Architecture architecture = Architecture::msa;
    /// Where keys are of several tokens: their inputs, and the first positions of these tokens.
    Tensor<float, 2> pooled;
    std::vector<int64_t> pooled_positions;

    bool is_pooled() const { return !pooled_positions.empty(); }
    View<float, 2> hidden() { return {x.data(), {x.extent(0), x.extent(2)}}; }
    View<const float, 2> hidden() const { return {x.data(), {x.extent(0), x.extent(2)}}; }
    /// Inputs of the indexer's keys, and their positions.
    View<const float, 2> key_input() const { return is_pooled() ? pooled.view() : hidden(); }
    std::span<const int64_t> key_positions() const {
        return is_pooled() ? pooled_positions : positions;
    }
};

/// Throws InputError unless the layers exist, are stored after RoPE, can share the ids of the first
/// one, and that one has the architecture's inputs.
void check_layers(const io::ActivationsReader& file, std::span<const int64_t> layers, Architecture);

/// Without `pooled`; with_x: and with x.
TrainingLayer read_layer(const io::ActivationsReader& file, int64_t layer, const FitOptions&,
                         const IndexForm&, bool with_x);

/// Sets `pooled` where the architecture has keys of several tokens: of x as it is now, or of the
/// file's keys before RoPE.
void pool(TrainingLayer&, const io::ActivationsReader& file, const IndexForm&);

/// Inputs of the keys of consecutive tokens, those of the layer in the file, before they are
/// pooled: x, or k before RoPE.
Tensor<float, 3> key_rows(const io::ActivationsReader& file, int64_t layer, QueryRange,
                          std::span<const int64_t> positions, const IndexForm&);
/// Likewise of the queries: x, or q before RoPE, [n, heads, channels].
Tensor<float, 3> query_rows(const io::ActivationsReader& file, int64_t layer, QueryRange,
                            std::span<const int64_t> positions, const IndexForm&);

/// Packed tokens, ascending, and a description.
struct Split {
    std::vector<int64_t> train, held_out;
    std::string text;  // "trained on positions 0:6144, held out 6144:8192, of 1 sequence"
};

/// Resolves --train and --eval. Throws InputError if one is empty, exceeds the sequences, or shares
/// a query with the other.
Split split_queries(const FitOptions&, const std::vector<int64_t>& cu_seqlens);

}  // namespace msa::experiments::fit
