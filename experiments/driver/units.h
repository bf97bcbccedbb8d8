// SPDX-License-Identifier: MIT
// Unit prefixes (tera, mebi, micro) for printing and parsing.
#pragma once

namespace msa::experiments {

inline constexpr double kTera = 1e12, kGiga = 1e9, kMega = 1e6, kMilli = 1e-3, kMicro = 1e-6;
inline constexpr double kMebi = 1 << 20;

}  // namespace msa::experiments
