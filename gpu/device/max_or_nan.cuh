// SPDX-License-Identifier: MIT
// A maximum that propagates NaN.
#pragma once

#include "gpu/device/warp.cuh"

namespace msa::cuda {

/// The larger of the two; NaN if either is NaN.
__device__ inline float max_or_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}
/// For sums of int8, or the bits of floats. On Hopper, two consecutive calls become one
/// instruction.
__device__ inline int max_or_nan(int a, int b) { return max(a, b); }

__device__ inline float warp_max_or_nan(float value) {
    return __any_sync(kAllLanes, isnan(value)) ? NAN : warp_max(value);
}

}  // namespace msa::cuda
