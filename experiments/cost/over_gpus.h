// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>

#include "experiments/cost/options.h"

namespace msa::experiments::cost {

/// Prints the time of a model's layer that is divided among GPUs, at every context: prefill and
/// decode (analysis/over_gpus.h).
void cost_over_gpus(const CostOptions&, const analysis::Hardware&, std::ostream& out);

}  // namespace msa::experiments::cost
