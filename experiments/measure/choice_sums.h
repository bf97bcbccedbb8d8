// SPDX-License-Identifier: MIT
// What is measured of the choices of a chunk, once their ids are there.
#pragma once

#include <vector>

#include "experiments/measure/pickers.h"

namespace msa::experiments::measure {

/// Attends over the ids of `choices`, which are some of the task's, checks them, and adds to the
/// tally what they keep of dense attention (measure() says which sums).
void add_choices(const Task&, const std::vector<size_t>& choices, const MeasuredChunk&,
                 const ChoiceIds& ids, Observer&, Tally& to);

}  // namespace msa::experiments::measure
