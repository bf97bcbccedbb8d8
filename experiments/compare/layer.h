// SPDX-License-Identifier: MIT
// One layer of msa-compare.
#pragma once

#include <string>
#include <vector>

#include "core/io/activations.h"
#include "experiments/compare/options.h"
#include "experiments/driver/run.h"

namespace msa::experiments::compare {

/// May one layer's heads be looked at in the other's place?
bool same_sizes(const io::LayerInfo&, const io::LayerInfo&);

/// Why a policy cannot run on a layer; empty where it can.
std::string why_unusable(const CompareOptions&, const io::LayerInfo& layer, bool has_previous,
                         const std::string& policy);

/// Compares the selectors on `layer` at the queries of `tokens` (packed, ascending) and writes its
/// datasets to the unit, and as its note `timing` the seconds that
/// each selector took to select and to be measured. `previous`: the layer before it, of the same
/// sizes, or absent. Throws std::logic_error where a self-check fails, Interrupted when a stop is
/// requested.
void compare_layer(const CompareOptions&, const io::ActivationsReader&, const io::LayerInfo& layer,
                   const io::LayerInfo* previous, const std::vector<std::string>& selectors,
                   const std::vector<int64_t>& tokens, const Worker&, io::UnitWriter&);

}  // namespace msa::experiments::compare
