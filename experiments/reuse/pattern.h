// SPDX-License-Identifier: MIT
// Which layers compute their own ids. Layers are counted from 0 in the order of the capture.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace msa::experiments::reuse {

/// [layers]: whether the layer computes its own ids. Otherwise it uses those of the nearest earlier
/// layer that does. The first layer does.
using Pattern = std::vector<bool>;

/// [layers]: whose ids each layer uses.
std::vector<size_t> sources(const Pattern&);
int64_t computing(const Pattern&);

/// A layer computes ids if the last one that did is `step` or more layers of the model before it.
/// `numbers` [layers], ascending: the layers' numbers in the model.
Pattern every(std::span<const int64_t> numbers, int64_t step);

/// Layers that share the ids of their first one: numbers in the model, both ends included.
struct Group {
    int64_t first = 0, last = 0;
};
/// "3-5", or "3" for a layer alone. InputError naming --groups.
Group parse_group(const std::string& item);
/// In parse_group's format.
std::string group_text(const Group&);
/// Layers in no group compute their own ids. InputError if two groups have a layer in common, or if
/// the first layer of a group is not in `numbers`.
Pattern grouped(std::span<const int64_t> numbers, const std::vector<Group>& groups);

/// The gaps between `numbers`: "4-5, 9"; empty if there are none.
std::string missing_layers(std::span<const int64_t> numbers);

/// [layers]: entry n is the pattern with the least total loss in which n + 1 layers compute ids;
/// nothing if all of these have an infinite loss. loss [layers, layers]: (s, t) is the loss of
/// layer t with the ids of layer s <= t; infinite or NaN: not allowed. Exact, by dynamic
/// programming over the last layer that computes: O(layers^3). Ties go to the pattern whose last
/// computing layer comes first.
std::vector<std::optional<Pattern>> least_loss(View<const double, 2> loss);

}  // namespace msa::experiments::reuse
