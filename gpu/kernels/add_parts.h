// SPDX-License-Identifier: MIT
// Sums in float of parts that are bf16. Counts are multiples of 8, memory begins at multiples of 16
// bytes.
#pragma once

#include <cuda_bf16.h>

#include "gpu/runtime.h"

namespace msa::cuda {

/// sums[i] += parts[i]
void add_parts(const Call&, const __nv_bfloat16* parts, int64_t count, float* sums);
/// to[i] = sums[i], rounded
void round_sums(const Call&, const float* sums, int64_t count, __nv_bfloat16* to);

}  // namespace msa::cuda
