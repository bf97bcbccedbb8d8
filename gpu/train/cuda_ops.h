// SPDX-License-Identifier: MIT
// What a transformer computes beside attention, on one NVIDIA GPU: see core/train/ops.h. Products
// are those of cuBLASLt, which is opened at run time, or plain kernels where it is not there; sums
// are float, each with one order, so that the same call gives bitwise the same results.
#pragma once

#include <memory>

#include "core/train/ops.h"

namespace msa::train {

/// `element`: of activations and of the weights that products read, bf16 or f32. InputError unless
/// the backend is "cuda"; UnsupportedError where this build has no CUDA.
std::unique_ptr<Ops> make_cuda_ops(std::unique_ptr<Backend> backend,
                                   Element element = Element::bf16);

/// Can GPUs sum over workers? NCCL is opened at run time; call this before there are threads, since
/// it sets what the library reads from the environment, as far as that is not set: no NVLink
/// multicast, and no access to a peer's stream-ordered memory, which is its GPU's alone.
Support cuda_workers();

}  // namespace msa::train
