// SPDX-License-Identifier: MIT
// Low-bit keys for policies' estimates.
#pragma once

#include <cstdint>
#include <span>

namespace msa {

inline constexpr int64_t kUnquantised = 16;  // bits from which on values are unchanged

/// Rounds each value to the nearest of 2^bits levels from the least to the largest of `values`;
/// ties to the even level.
void quantise(std::span<float> values, int64_t bits);

}  // namespace msa
