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
    const auto bits = static_cast<int32_t>(__float_as_int(score + 0.0F));
    return static_cast<uint32_t>(bits < 0 ? ~bits : bits | INT32_MIN);
}
/// The score that has this key; -inf for kNoCandidate.
__device__ inline float score_of_key(uint32_t key) {
    if (key == kNoCandidate) return -INFINITY;
    return __int_as_float(static_cast<int>(key >> 31 != 0 ? key ^ 1U << 31 : ~key));
}

}  // namespace msa::cuda
