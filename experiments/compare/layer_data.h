// SPDX-License-Identifier: MIT
// The operands of one layer, and the layer as the selectors are to see it: with the heads that
// share a choice of blocks as its groups. Keys and values are in host memory; queries, which are G
// times as many, are read from the file when they are looked at.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/io/activations.h"
#include "experiments/compare/options.h"
#include "experiments/driver/operands.h"

namespace msa::experiments::compare {

class LayerData {
public:
    /// `layer` is one of the file's; both must outlive this.
    LayerData(const io::ActivationsReader&, const io::LayerInfo&, const LayerElements&, Sharing);

    io::LayerInfo info;
    LayerElements elements;
    /// Sharing by head makes G views of one head a group, and so of every operation that works by
    /// group one that works by head; else there is one view.
    int64_t views = 1;
    Tensor<float, 3> k, v, index_k;  // [N, heads, channels]; index_k absent where not there

    /// [n, Hq / views, dh] of a view, of the packed tokens, ascending.
    Tensor<float, 3> q(std::span<const int64_t> tokens, size_t view) const;
    /// [n, Hkv, didx] likewise; absent where not there.
    Tensor<float, 3> index_q(std::span<const int64_t> tokens) const;
    /// SelectorLayer::read_learned.
    auto learned() const { return read_.learned(); }
    /// [Hkv * heads] of a view; absent without.
    Tensor<float, 1> sinks(size_t view) const;
    /// The whole layer as a view has it.
    Problem problem(const io::ActivationsInfo&, int64_t block_size) const;

private:
    /// All heads of q, of the packed tokens: many policies look at the same queries, and a file
    /// unpacks a thousand tokens to give one. Where all rows together are small, those once read
    /// are kept. Not for several threads at once.
    Tensor<float, 3> q_rows(std::span<const int64_t> tokens) const;

    LayerReader read_;
    mutable Tensor<float, 3> kept_;    // [N, Hq, dh], absent where too large
    mutable std::vector<bool> known_;  // [N] rows of it
};

/// Of q [n, Hq, dh]: what the view `view` of a layer that is shared by head sees, [n, Hkv, dh].
Tensor<float, 3> one_of_each_group(View<const float, 3> q, int64_t group_size, int64_t view);

/// [Hq / views] The sinks of the view; absent without.
Tensor<float, 1> sinks_of_view(const io::LayerInfo&, int64_t views, int64_t view);

}  // namespace msa::experiments::compare
