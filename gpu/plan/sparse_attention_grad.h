// SPDX-License-Identifier: MIT
// How the tuned kernels of sparse_attention_grad take a call: pure arithmetic on its sizes.
#pragma once

#include "core/backend.h"
#include "gpu/kernels/sparse_attention_grad_sm90.h"

namespace msa::cuda {

/// Chunks of queries within kGradSlotBytes, as many scheduled at once as kMostListBytes lets.
struct SparseGradPlan {
    SparseGradArgs sizes{};  // no addresses

    /// Of a call that has queries and keys.
    SparseGradPlan(const Problem&, int64_t top_k);
    int64_t list_bytes() const;
};

}  // namespace msa::cuda
