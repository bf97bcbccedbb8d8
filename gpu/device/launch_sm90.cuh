// SPDX-License-Identifier: MIT
// Launches of the tuned kernels: their shared memory.
#pragma once

#include <cuda_runtime.h>

#include "gpu/device/by_sizes.cuh"
#include "gpu/device/sm90.cuh"

namespace msa::cuda::sm90 {

/// Asks for the dynamic shared memory of a kernel, whose layout is the struct `Shared`.
template <typename Shared, typename Kernel>
cudaError_t allow_shared(Kernel* kernel) {
    static_assert(sizeof(Shared) <= kMostSharedBytes);
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                sizeof(Shared));
}

}  // namespace msa::cuda::sm90
