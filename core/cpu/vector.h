// SPDX-License-Identifier: MIT
// One vector register of kLanes floats.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/cpu/tile.h"

namespace msa::cpu {

using Vec [[gnu::vector_size(4 * kLanes)]] = float;
using IntVec [[gnu::vector_size(4 * kLanes)]] = int32_t;
using UintVec [[gnu::vector_size(4 * kLanes)]] = uint32_t;

inline Vec load(const float* from) {
    Vec v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

inline void store(float* to, Vec v) { std::memcpy(to, &v, sizeof v); }

inline Vec broadcast(float x) { return Vec{} + x; }

/// True in the first `count` lanes.
inline IntVec first_lanes(int64_t count) {
    IntVec lane;
    for (int32_t i = 0; i < kLanes; ++i) lane[i] = i;
    return lane < static_cast<int32_t>(count);
}

}  // namespace msa::cpu
