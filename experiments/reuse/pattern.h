// SPDX-License-Identifier: MIT
// Which layers compute ids of their own. Layers are counted from 0 in the order of the capture.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace msa::experiments::reuse {

/// [layers]: does the layer compute its own ids? The others take those of the nearest layer before
/// them that does. The first one does.
using Pattern = std::vector<bool>;

/// [layers]: whose ids each layer takes.
std::vector<size_t> sources(const Pattern&);
int64_t computing(const Pattern&);

/// A layer computes where the last one that did lies `step` or more layers of the model back.
/// `numbers` [layers], ascending: the layers' numbers in the model.
Pattern every(std::span<const int64_t> numbers, int64_t step);

/// Layers that share the ids of their first one: numbers in the model, both ends included.
struct Group {
    int64_t first = 0, last = 0;
};
/// "3-5", or "3" for a layer alone. InputError naming --groups.
Group parse_group(const std::string& item);
/// As parse_group takes it.
std::string group_text(const Group&);
/// Layers in no group compute their own ids. InputError where two groups have a layer in common, or
/// where the first layer of a group is not among `numbers`.
Pattern grouped(std::span<const int64_t> numbers, const std::vector<Group>& groups);

/// The gaps between `numbers`: "4-5, 9"; empty where there is none.
std::string missing_layers(std::span<const int64_t> numbers);

/// [layers]: the pattern of the least total loss among those in which n + 1 layers compute; nothing
/// where each of them has an infinite loss. loss [layers, layers]: (s, t) is what layer t loses
/// with the ids of layer s <= t; infinite or NaN: not allowed. Exact, by dynamic programming over
/// the last layer that computes: O(layers^3). Among equals, the one whose last computing layer is
/// first.
std::vector<std::optional<Pattern>> least_loss(View<const double, 2> loss);

}  // namespace msa::experiments::reuse
