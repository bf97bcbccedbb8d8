// SPDX-License-Identifier: MIT
// A maximum that propagates NaN.
#pragma once

#include "gpu/device/warp.cuh"

namespace msa::cuda {

/// The larger of the two; NaN if either is NaN.
__device__ inline float max_or_nan(float a, float b) { return b > a || isnan(b) ? b : a; }

__device__ inline float warp_max_or_nan(float value) {
    return __any_sync(kAllLanes, isnan(value)) ? NAN : warp_max(value);
}

}  // namespace msa::cuda
