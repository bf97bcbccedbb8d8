// SPDX-License-Identifier: MIT
// A transformer's operations other than attention (core/train/ops.h) on one NVIDIA GPU. Products
// use cuBLASLt, which is opened at run time, or plain kernels without it. Sums are float with a
// fixed order, so the same call gives bitwise the same results.
#pragma once

#include <memory>

#include "core/train/ops.h"

namespace msa::train {

/// `element`: type of activations and of the weights of products, bf16 or f32. InputError unless
/// the backend is "cuda"; UnsupportedError if this build has no CUDA.
std::unique_ptr<Ops> make_cuda_ops(std::unique_ptr<Backend> backend,
                                   Element element = Element::bf16);

/// Whether GPUs can sum over workers. Opens NCCL at run time. Call this before threads start,
/// because it sets environment variables of NCCL unless they are set: no NVLink multicast, and no
/// access to a peer's stream-ordered memory, which only its own GPU can access.
Support cuda_workers();

}  // namespace msa::train
