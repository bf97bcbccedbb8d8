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

/// Whether the two layers have equal numbers and sizes of heads.
bool same_sizes(const io::LayerInfo&, const io::LayerInfo&);

/// Why a policy cannot run on a layer; empty if it can.
std::string why_unusable(const CompareOptions&, const io::LayerInfo& layer, bool has_previous,
                         const std::string& policy);

/// The queries that are compared on a layer. Averages count those that see more keys than the
/// largest budget.
measure::LayerQueries compared_queries(const CompareOptions&, const io::ActivationsReader&,
                                       const io::LayerInfo&,
                                       const std::vector<std::string>& selectors);

/// Compares the selectors on a part of a layer's compared queries. A whole layer writes final
/// datasets; a part writes sums that join_layer combines. The unit's note `timing` has the seconds
/// of each selector's selection and measurement. Selections are those of the whole layer, whatever
/// the part. `previous`: the previous layer, of the same sizes, or null. Throws std::logic_error if
/// a self-check fails, Interrupted if a stop is requested.
void compare_part(const CompareOptions&, const io::ActivationsReader&, const LayerPart&,
                  const io::LayerInfo* previous, const std::vector<std::string>& selectors,
                  const measure::LayerQueries&, const Worker&, io::UnitWriter&);

}  // namespace msa::experiments::compare
