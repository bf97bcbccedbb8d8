// SPDX-License-Identifier: MIT
// Scores as integers in the order of eq:msa-topk.
#pragma once

#include <cstdint>

namespace msa::cuda {

/// The key of a block that cannot be selected: -inf or NaN. Every other key is above it.
inline constexpr uint32_t kNoCandidate = 0;

/// Larger key, better score; -0 and +0 share one key.
__device__ inline uint32_t ordered_key(float score) {
    if (!(score > -INFINITY)) return kNoCandidate;  // or NaN
    const uint32_t bits = __float_as_uint(score == 0 ? 0.0F : score);
    return bits & 0x80000000U ? ~bits : bits | 0x80000000U;
}

}  // namespace msa::cuda
