// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>

#include "experiments/cost/options.h"

namespace msa::experiments::cost {

/// Prints what a model's layer costs at every context: prefill and decode, stage by stage.
void cost_from_sizes(const CostOptions&, const analysis::Hardware&, std::ostream& out);

}  // namespace msa::experiments::cost
