// SPDX-License-Identifier: MIT
// Bounds a selector's memory: it works on pieces of the queries.
#pragma once

#include <algorithm>
#include <cstdint>

namespace msa {

/// How many rows of `floats` floats fit into 64 MiB; at least one.
inline int64_t rows_held(int64_t floats) {
    constexpr int64_t kFloats = int64_t{1} << 24;
    return std::max<int64_t>(1, kFloats / std::max<int64_t>(1, floats));
}

}  // namespace msa
