// SPDX-License-Identifier: MIT
// The instantiation of a tuned kernel for a call's sizes.
#pragma once

#include <cuda_runtime.h>

namespace msa::cuda {

/// Calls launch.operator()<BlockSize>() with the block size of the call: 32, 64 or 128.
template <typename Launch>
cudaError_t by_block_size(int block_size, Launch launch) {
    switch (block_size) {
        case 32: return launch.template operator()<32>();
        case 64: return launch.template operator()<64>();
        default: return launch.template operator()<128>();
    }
}

/// Calls launch.operator()<Dim>() with the least Dim of 64, 128 and 256 that has `dim` channels.
template <typename Launch>
cudaError_t by_index_dim(int dim, Launch launch) {
    return dim <= 64    ? launch.template operator()<64>()
           : dim <= 128 ? launch.template operator()<128>()
                        : launch.template operator()<256>();
}

/// Calls launch.operator()<Dim, BlockSize>() with the sizes of the call; Dim is 64 or 128.
template <typename Launch>
cudaError_t by_sizes(int dim, int block_size, Launch launch) {
    return by_block_size(block_size, [&]<int BlockSize>() {
        return dim == 128 ? launch.template operator()<128, BlockSize>()
                          : launch.template operator()<64, BlockSize>();
    });
}

/// The same without blocks of 32.
template <typename Launch>
cudaError_t by_wide_sizes(int dim, int block_size, Launch launch) {
    return block_size == 64 ? dim == 128 ? launch.template operator()<128, 64>()
                                         : launch.template operator()<64, 64>()
           : dim == 128 ? launch.template operator()<128, 128>()
                            : launch.template operator()<64, 128>();
}

/// The same for kernels with operands of type T, which also take heads of 256 channels, of 16 bits,
/// in blocks of 64 or 128. `Of32`: whether they have blocks of 32.
template <typename T, bool Of32 = (sizeof(T) > 1), typename Launch>
cudaError_t by_head_sizes(int dim, int block_size, Launch launch) {
    if constexpr (sizeof(T) > 1)
        if (dim == 256)
            return block_size == 64 ? launch.template operator()<256, 64>()
                                    : launch.template operator()<256, 128>();
    if constexpr (Of32)
        return by_sizes(dim, block_size, launch);
    else
        return by_wide_sizes(dim, block_size, launch);
}

}  // namespace msa::cuda
