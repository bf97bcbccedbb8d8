// SPDX-License-Identifier: MIT
// Gradient of sparse_attention (eq:msa-sparse-attn) in the instructions of compute capability 8.0:
// the schedule, slots and sums of sparse_attention_grad_sm90.h.
#pragma once

#include "gpu/kernels/sparse_attention_grad_stages.h"

namespace msa::cuda {

/// Shared memory of a thread block, with some for lists: two steps of q and d_out, keys and values
/// of a tile, and dS.
constexpr int grad_shared_sm80(int head_dim, int tile_keys) {
    return 2 * (4 * kGradStepRows * head_dim + 2 * tile_keys * head_dim +
                tile_keys * kGradStepRows) +
           8192;
}

template <typename T>
cudaError_t launch_sparse_attention_grad_sm80(const SparseGradArgs&, int sms, cudaStream_t);

}  // namespace msa::cuda
