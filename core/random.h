// SPDX-License-Identifier: MIT
// Counter-based random numbers: a value is a function of the integers that name it, whatever the
// order or number of draws.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace msa {

/// Mixes 64 bits (the finalizer of SplitMix64, Steele, Lea and Flood 2014).
constexpr uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31U);
}

/// Mixes a list of integers; their order matters.
template <typename... Rest>
constexpr uint64_t mix(uint64_t first, int64_t second, Rest... rest) {
    const uint64_t both = mix(mix(first) ^ static_cast<uint64_t>(second));
    if constexpr (sizeof...(rest) == 0)
        return both;
    else
        return mix(both, static_cast<int64_t>(rest)...);
}

/// In [0, 1), from mixed bits.
constexpr double random_uniform(uint64_t bits) {
    return static_cast<double>(bits >> 11U) * 0x1p-53;
}

/// Standard normal, from mixed bits (Box and Muller).
inline double random_normal(uint64_t bits) {
    const double radius = std::sqrt(-2 * std::log1p(-random_uniform(bits)));
    return radius * std::cos(2 * std::numbers::pi * random_uniform(mix(bits)));
}

}  // namespace msa
