// SPDX-License-Identifier: MIT
// How tiled kernels see the layout.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "core/selection.h"

namespace msa::cuda {

/// Consecutive queries of one sequence.
struct QueryTile {
    int64_t query;         // first query row
    int64_t key;           // first key row of the sequence
    int32_t queries;       // rows
    int32_t most_visible;  // keys that the last of them sees
    int32_t first_block;   // block 0 of the sequence when the blocks of all are numbered through
    int32_t padding = 0;
};

/// SelectionRule in the integers of the kernels.
struct DeviceRule {
    int32_t top_k, forced_local, forced_first;

    explicit DeviceRule(const SelectionRule& rule)
        : top_k(static_cast<int32_t>(rule.top_k)),
          forced_local(static_cast<int32_t>(rule.forced_local)),
          forced_first(static_cast<int32_t>(rule.forced_first)) {}
};

/// Keys that a query sees.
__device__ inline int seen_keys(const KeyRange* visible, int64_t query) {
    return static_cast<int>(visible[query].count);
}

}  // namespace msa::cuda
