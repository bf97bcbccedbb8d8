// SPDX-License-Identifier: MIT
// The selection rule for one row.
#pragma once

#include "gpu/kernels/device_rule.h"

namespace msa::cuda {

/// Counts of a row's visible blocks, forced blocks, and slots that forced blocks leave free.
struct RowRule {
    int visible, limit, first, local, kept;
    __device__ RowRule(const DeviceRule& rule, int seen, int block_size) {
        visible = (seen + block_size - 1) / block_size;
        limit = visible - rule.forced_local;
        first = min(rule.forced_first, visible);
        local = min(rule.forced_local, visible - first);
        kept = rule.top_k - first - local;
    }
};

}  // namespace msa::cuda
