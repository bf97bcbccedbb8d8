// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>

#include "experiments/cost/options.h"

namespace msa::experiments::cost {

/// The model of --preset with the sizes that options replace.
Model model_of(const CostOptions&);
/// One of its layers over `tokens`. InputError where the tokens hold no k blocks.
analysis::LayerSizes sizes_of(const CostOptions&, const Model&, int64_t tokens);

/// Prints what a model's layer costs at every context: prefill and decode, stage by stage.
void cost_from_sizes(const CostOptions&, const analysis::Hardware&, std::ostream& out);

}  // namespace msa::experiments::cost
