// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "core/select/selector.h"

namespace msa {

/// P_b [n, Hkv, B] of the queries at `positions` (ascending) of one sequence.
Tensor<float, 3> mass_at(const SelectorLayer&, int64_t sequence,
                         std::span<const int64_t> positions);

/// Sum of P_b [Hkv, B] over all queries of a sequence's prompt; 0 in the prefill phase, where the
/// queries come one after the other.
Tensor<float, 2> prompt_mass(const SelectorLayer&, int64_t sequence);

}  // namespace msa
