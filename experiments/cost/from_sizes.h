// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>

#include "experiments/cost/options.h"

namespace msa::experiments::cost {

/// The model of --preset, with sizes replaced by options.
Model model_of(const CostOptions&);
/// The sizes of one of its layers over `tokens`. InputError if there are fewer than k blocks.
analysis::LayerSizes sizes_of(const CostOptions&, const Model&, int64_t tokens);

/// Prints the cost of a model's layer at every context: prefill and decode, stage by stage.
void cost_from_sizes(const CostOptions&, const analysis::Hardware&, std::ostream& out);

}  // namespace msa::experiments::cost
