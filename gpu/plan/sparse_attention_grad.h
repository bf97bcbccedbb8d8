// SPDX-License-Identifier: MIT
// How a call of sparse_attention_grad is cut for the tuned kernels: arithmetic on its sizes.
#pragma once

#include "core/backend.h"
#include "gpu/kernels/sparse_attention_grad_sm90.h"

namespace msa::cuda {

/// Chunks of queries within kGradSlotBytes, as many scheduled at once as kMostListBytes allows.
struct SparseGradPlan {
    SparseGradArgs sizes{};  // no addresses

    /// For a call with at least one query and one key.
    SparseGradPlan(const Problem&, int64_t top_k);
    int64_t list_bytes() const;
};

}  // namespace msa::cuda
