// SPDX-License-Identifier: MIT
// Which queries attend to some keys: what a check of the gradients of these keys must look at.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "core/tensor.h"

namespace msa::experiments::bench {

/// The queries that attend to any of the keys `tokens` in a group, ascending, and to which of them,
/// by their index. ids [Nq, Hkv, k] on the host; absent: dense.
struct SeenKeys {
    std::vector<int64_t> queries;
    std::vector<std::vector<int64_t>> keys;  // of each of the queries

    SeenKeys(const Problem&, const std::vector<int64_t>& tokens, View<const int32_t, 3> ids,
             int64_t group);
};

/// <a, b> in double.
double product(const float* a, const float* b, int64_t width);

}  // namespace msa::experiments::bench
