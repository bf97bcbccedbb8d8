// SPDX-License-Identifier: MIT
// What a pattern of layers (driver/layer_pattern.h) comes to, and the best one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "experiments/driver/layer_pattern.h"

namespace msa::experiments::reuse {

/// How many layers compute their own ids.
int64_t computing(const LayerPattern&);

/// The gaps between `numbers`: "4-5, 9"; empty if there are none.
std::string missing_layers(std::span<const int64_t> numbers);

/// [layers]: entry n is the pattern with the least total loss in which n + 1 layers compute ids;
/// nothing if all of these have an infinite loss. loss [layers, layers]: (s, t) is the loss of
/// layer t with the ids of layer s <= t; infinite or NaN: not allowed. Exact, by dynamic
/// programming over the last layer that computes: O(layers^3). Ties go to the pattern whose last
/// computing layer comes first.
std::vector<std::optional<LayerPattern>> least_loss(View<const double, 2> loss);

}  // namespace msa::experiments::reuse
