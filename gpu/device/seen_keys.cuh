// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace msa::cuda {

/// The number of keys that a query sees.
__device__ inline int seen_keys(const KeyRange* visible, int64_t query) {
    return static_cast<int>(visible[query].count);
}

}  // namespace msa::cuda
