// SPDX-License-Identifier: MIT
// Eigen's matrix product with Eigen's own threads. It is a separate library that exports nothing
// else, because msalab's Eigen runs on one thread and the two must not be mixed.
#pragma once

#include <cstdint>

namespace msa::experiments::bench {

/// c = a b, all n x n, column-major.
[[gnu::visibility("default")]] void eigen_sgemm(const float* a, const float* b, float* c,
                                                int64_t n);

}  // namespace msa::experiments::bench
