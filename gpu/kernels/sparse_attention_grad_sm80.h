// SPDX-License-Identifier: MIT
// Gradient of sparse_attention (eq:msa-sparse-attn) with the instructions of compute capability
// 8.0. Schedule, slots and sums are those of sparse_attention_grad_sm90.h.
#pragma once

#include "gpu/kernels/index_select_sm80.h"
#include "gpu/kernels/sparse_attention_grad_stages.h"

namespace msa::cuda {

constexpr int kGradSmallRows = kGradStepRows / 2;

// With 256 channels, registers hold dK or dV of a warp's keys, and shared memory steps of half as
// many rows. Blocks of 128 keys are then given as two.
constexpr int grad_sides_sm80(int head_dim) { return head_dim > 128 ? 2 : 1; }
constexpr int grad_rows_sm80(int head_dim) {
    return head_dim > 128 ? kGradSmallRows : kGradStepRows;
}

/// Shared memory of a thread block: two steps of q and d_out, keys and values of a tile, dS, P'
/// that one side has for the other, and lists.
constexpr int grad_shared_sm80(int head_dim, int tile_keys) {
    const int rows = grad_rows_sm80(head_dim);
    return 2 * (4 * rows * head_dim + 2 * tile_keys * head_dim + tile_keys * rows) +
           (grad_sides_sm80(head_dim) - 1) * 4 * tile_keys * rows + 8192;
}

/// `large`: a thread block may have grad_shared_sm80() bytes. If not, a step has half as many rows
/// wherever that is above 99 KB, and args.step_queries must match. 256 channels need those bytes.
template <typename T>
cudaError_t launch_sparse_attention_grad_sm80(const SparseGradArgs&, bool large, int sms,
                                              cudaStream_t);

}  // namespace msa::cuda
