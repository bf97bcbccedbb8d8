// SPDX-License-Identifier: MIT
// The stages of launch_sparse_attention_grad_sm90; products, parts and slots of one chunk.
#pragma once

#include "gpu/kernels/sparse_attention_grad_sm90.h"

namespace msa::cuda {

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
