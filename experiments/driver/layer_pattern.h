// SPDX-License-Identifier: MIT
// Which layers have ids of their own, and which take those of an earlier layer: the one rule of
// msa-fit-indexer and msa-reuse.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/io/layer_info.h"
#include "experiments/driver/option_table.h"

namespace msa::experiments {

/// [layers], in the order of the capture: whether the layer has ids of its own. Otherwise it takes
/// those of the nearest earlier layer that does. The first layer does.
using LayerPattern = std::vector<bool>;

/// [layers]: whose ids each layer uses.
std::vector<size_t> sources(const LayerPattern&);

/// A layer has ids of its own if the last one that does is `step` or more layers of the model
/// before it. `numbers` [layers], ascending: the layers' numbers in the model.
LayerPattern every(std::span<const int64_t> numbers, int64_t step);

/// Layers that share the ids of their first one: numbers in the model, both ends included.
struct LayerGroup {
    int64_t first = 0, last = 0;
};
/// "3-5", or "3" for a layer alone. InputError naming --groups.
LayerGroup parse_group(const std::string& item);
/// In parse_group's format.
std::string group_text(const LayerGroup&);
/// Layers in no group have ids of their own. InputError if two groups have a layer in common, or if
/// the first layer of a group is not in `numbers`. `items`: as parse_group takes them.
LayerPattern grouped(std::span<const int64_t> numbers, const std::vector<std::string>& items);

/// --groups A-B,...
void add_groups(OptionTable&, std::vector<std::string>& items, const std::string& help);

/// Layers take each other's ids: InputError unless their groups of heads are the same.
void require_same_groups(const std::string& file, const io::LayerInfo& a, const io::LayerInfo& b);

}  // namespace msa::experiments
