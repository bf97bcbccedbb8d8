// SPDX-License-Identifier: MIT
// Launching the tuned kernels: their shared memory, and the instance for a call's sizes.
#pragma once

#include <cuda_runtime.h>

#include "gpu/device/sm90.cuh"

namespace msa::cuda::sm90 {

/// Asks for the dynamic shared memory of a kernel, whose layout is the struct `Shared`.
template <typename Shared, typename Kernel>
cudaError_t allow_shared(Kernel* kernel) {
    static_assert(sizeof(Shared) <= kMostSharedBytes);
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                sizeof(Shared));
}

/// Calls launch.operator()<Dim, BlockSize>() with the sizes of the call, each 64 or 128.
template <typename Launch>
cudaError_t by_sizes(int dim, int block_size, Launch launch) {
    if (dim == 128)
        return block_size == 128 ? launch.template operator()<128, 128>()
                                 : launch.template operator()<128, 64>();
    return block_size == 128 ? launch.template operator()<64, 128>()
                             : launch.template operator()<64, 64>();
}

}  // namespace msa::cuda::sm90
