// SPDX-License-Identifier: MIT
// Numbers of few bits, as policies hold keys for their estimates.
#pragma once

#include <cstdint>
#include <span>

namespace msa {

inline constexpr int64_t kUnquantised = 16;  // bits and more: values stay as they are

/// Each value goes to the nearest of 2^bits steps from the least to the largest of `values`; ties
/// to the even step.
void quantise(std::span<float> values, int64_t bits);

}  // namespace msa
