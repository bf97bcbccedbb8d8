// SPDX-License-Identifier: MIT
// The operands of one layer in host memory, and the layer as the selectors are to see it: with the
// heads that share a choice of blocks as its groups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/io/activations.h"
#include "experiments/compare/options.h"
#include "experiments/driver/operands.h"

namespace msa::experiments::compare {

struct LayerData {
    LayerData(const io::ActivationsReader&, const io::LayerInfo&, const LayerElements&, Sharing);

    io::LayerInfo info;
    LayerElements elements;
    /// q [N, Hkv * heads, dh] of each view. Sharing by head makes G views of one head a group, and
    /// so of every operation that works by group one that works by head; else there is one view.
    std::vector<Tensor<float, 3>> q;
    Tensor<float, 3> k, v, index_q, index_k;  // [N, heads, channels]; index absent where not there

    /// [Hkv * heads] of a view; absent without.
    Tensor<float, 1> sinks(size_t view) const;
    /// The whole layer as a view has it.
    Problem problem(const io::ActivationsInfo&, int64_t block_size) const;
};

/// Of q [n, Hq, dh]: what the view `view` of a layer that is shared by head sees, [n, Hkv, dh].
Tensor<float, 3> one_of_each_group(View<const float, 3> q, int64_t group_size, int64_t view);

/// [Hq / views] The sinks of the view; absent without.
Tensor<float, 1> sinks_of_view(const io::LayerInfo&, int64_t views, int64_t view);

}  // namespace msa::experiments::compare
