// SPDX-License-Identifier: MIT
// Bytes of values other than operands, for all cost models.
#pragma once

#include <cstdint>

namespace msa::analysis {

inline constexpr double kScoreBytes = 4, kIdBytes = 4, kLseBytes = 4, kMassBytes = 4;
inline constexpr double kLossBytes = 8, kGradientBytes = 4;  // of index_kl

/// A count as a factor of bytes and FLOPs.
inline double real(int64_t count) { return static_cast<double>(count); }

}  // namespace msa::analysis
