// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>

#include "experiments/cost/options.h"

namespace msa::experiments::cost {

/// Prints what sparse attention costs on the blocks that a results file holds. Throws InputError
/// where its queries have gaps: neighbouring queries are what the loop orders live on.
void cost_from_results(const CostOptions&, const analysis::Hardware&, std::ostream& out);

}  // namespace msa::experiments::cost
