// SPDX-License-Identifier: MIT
// Float sums of bf16 or f16 parts (`element`). Counts are multiples of 8; memory is aligned to 16
// bytes.
#pragma once

#include "gpu/runtime.h"

namespace msa::cuda {

/// sums[i] += parts[i]
void add_parts(const Call&, Element element, const void* parts, int64_t count, float* sums);
/// to[i] = sums[i], rounded
void round_sums(const Call&, Element element, const float* sums, int64_t count, void* to);

}  // namespace msa::cuda
