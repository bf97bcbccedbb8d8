// SPDX-License-Identifier: MIT
// Selectors work on pieces of the queries, so that what they hold of a row is bounded.
#pragma once

#include <algorithm>
#include <cstdint>

namespace msa {

/// How many rows of as many floats each fit into 64 MiB; at least one.
inline int64_t rows_held(int64_t floats) {
    constexpr int64_t kFloats = int64_t{1} << 24;
    return std::max<int64_t>(1, kFloats / std::max<int64_t>(1, floats));
}

}  // namespace msa
