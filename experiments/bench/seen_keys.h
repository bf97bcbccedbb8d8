// SPDX-License-Identifier: MIT
// The queries that attend to some keys, for checks of these keys' gradients.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "core/tensor.h"

namespace msa::experiments::bench {

/// The queries that attend to any of the keys `tokens` in a group, ascending, and the indices in
/// `tokens` of those keys. ids [Nq, Hkv, k] on the host; absent: dense.
struct SeenKeys {
    std::vector<int64_t> queries;
    std::vector<std::vector<int64_t>> keys;  // for each query

    SeenKeys(const Problem&, const std::vector<int64_t>& tokens, View<const int32_t, 3> ids,
             int64_t group);
};

/// <a, b> in double.
double product(const float* a, const float* b, int64_t width);

}  // namespace msa::experiments::bench
