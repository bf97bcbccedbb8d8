// SPDX-License-Identifier: MIT
// Exponentials and logarithms in base 2, by the hardware's instructions.
#pragma once

namespace msa::cuda {

constexpr float kLog2E = 1.44269504F, kLn2 = 0.693147181F;

/// 2^x, about 2 units in the last place; results below the normal range become 0.
__device__ inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// The base-2 logarithm, off by at most 2^-22 between 1/2 and 2, elsewhere by about 2^-22 of
/// itself; -infinity from 0 up to the normal range.
__device__ inline float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace msa::cuda
