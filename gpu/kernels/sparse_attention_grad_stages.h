// SPDX-License-Identifier: MIT
// The stages of launch_sparse_attention_grad_sm90; products, parts and slots of one chunk.
#pragma once

#include "gpu/kernels/sparse_attention_grad_sm90.h"

namespace msa::cuda {

/// Each block of [rows, top_k] ids, of two halves, as its halves that the query sees, and -1 behind
/// them: to [rows, 2 top_k]. `groups`: rows of a query. `half`: keys.
cudaError_t launch_halves(const int32_t* ids, const KeyRange* visible, int64_t rows, int groups,
                          int top_k, int half, int32_t* to, cudaStream_t);
template <typename T>
cudaError_t launch_grad_prepare(const SparseGradArgs&, cudaStream_t);
cudaError_t launch_grad_schedule(const SparseGradArgs&, int first_chunk, cudaStream_t);
template <typename T>
cudaError_t launch_grad_products(const SparseGradArgs&, int sms, cudaStream_t);
template <typename T>
cudaError_t launch_grad_parts(const SparseGradArgs&, int sms, cudaStream_t);
template <typename T>
cudaError_t launch_grad_slots(const SparseGradArgs&, cudaStream_t);
template <typename T>
cudaError_t launch_grad_finish(const SparseGradArgs&, cudaStream_t);

}  // namespace msa::cuda
