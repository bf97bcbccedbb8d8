// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>

#include "experiments/cost/options.h"

namespace msa::experiments::cost {

/// Prints the cost of sparse attention on the selected blocks of a results file. Throws InputError
/// if its queries have gaps, since the loop orders depend on neighbouring queries.
void cost_from_results(const CostOptions&, const analysis::Hardware&, std::ostream& out);

}  // namespace msa::experiments::cost
