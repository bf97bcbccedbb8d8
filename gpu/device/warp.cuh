// SPDX-License-Identifier: MIT
// Reductions over the 32 lanes of a warp, in one fixed order; every lane gets the result.
#pragma once

namespace msa::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x) / kWarp; }

/// threadIdx.x, read again. So the compiler keeps no value derived from it in registers until here.
__device__ inline int opaque_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

template <typename T>
__device__ T warp_sum(T value) {
    for (int step = kWarp / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(kAllLanes, value, step);
    return value;
}

/// Ignores NaN.
__device__ inline float warp_max(float value) {
    for (int step = kWarp / 2; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
    return value;
}

}  // namespace msa::cuda
