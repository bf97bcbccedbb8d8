// SPDX-License-Identifier: MIT
// How tiled kernels see layout and selection rule.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "core/selection.h"
#include "gpu/query_tile.h"

namespace msa::cuda {

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
