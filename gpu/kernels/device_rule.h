// SPDX-License-Identifier: MIT
// SelectionRule as 32-bit integers, for kernels.
#pragma once

#include <cstdint>

#include "core/selection.h"

namespace msa::cuda {

struct DeviceRule {
    int32_t top_k, forced_local, forced_first;

    explicit DeviceRule(const SelectionRule& rule)
        : top_k(static_cast<int32_t>(rule.top_k)),
          forced_local(static_cast<int32_t>(rule.forced_local)),
          forced_first(static_cast<int32_t>(rule.forced_first)) {}
};

}  // namespace msa::cuda
