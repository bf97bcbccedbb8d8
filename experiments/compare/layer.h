// SPDX-License-Identifier: MIT
// One layer of msa-compare, or a part of its queries.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/io/activations.h"
#include "experiments/compare/options.h"
#include "experiments/driver/run.h"
#include "experiments/measure/queries.h"

namespace msa::experiments::compare {

/// May one layer's heads be looked at in the other's place?
bool same_sizes(const io::LayerInfo&, const io::LayerInfo&);

/// Why a policy cannot run on a layer; empty where it can.
std::string why_unusable(const CompareOptions&, const io::LayerInfo& layer, bool has_previous,
                         const std::string& policy);

/// The queries that are compared on a layer, and which of them averages count: those that see more
/// than the largest budget.
measure::LayerQueries compared_queries(const CompareOptions&, const io::ActivationsReader&,
                                       const io::LayerInfo&,
                                       const std::vector<std::string>& selectors);

/// Compares the selectors on a layer at some of its compared queries, and writes its datasets to
/// the unit. A whole layer writes final datasets; a part writes sums that join_layer combines. The
/// unit's note `timing` has the seconds that each selector took to select and to be measured.
/// Selections are those of the whole layer, whatever the part. `previous`: the layer before it, of
/// the same sizes, or absent. Throws std::logic_error where a self-check fails, Interrupted when a
/// stop is requested.
void compare_part(const CompareOptions&, const io::ActivationsReader&, const LayerPart&,
                  const io::LayerInfo* previous, const std::vector<std::string>& selectors,
                  const measure::LayerQueries&, const Worker&, io::UnitWriter&);

}  // namespace msa::experiments::compare
