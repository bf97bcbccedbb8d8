// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

#include "analysis/rows.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa::experiments::compare {

/// One chunk as a config is measured on it.
struct MeasuredChunk {
    const Problem& problem;
    std::span<const analysis::RowKind> kinds;  // [Nq]
    std::span<const int64_t> blocks;           // [Nq] QueryBlocks::of_query
    View<const float, 3> mass;                 // [Nq, Hkv, B]
    View<const int32_t, 3> oracle_ids;         // [Nq, Hkv, k]
    View<const float, 3> dense;                // [Nq, Hq, dh]
    View<const double, 2> norm;                // [Nq, Hkv] |o_dense|^2 of the group's heads
    View<const float, 2> lse;                  // [Nq, Hq] of dense attention
    double mass_bound;  // how far a sum of probabilities may be off, by rounding alone
};

}  // namespace msa::experiments::compare
