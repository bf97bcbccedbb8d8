// SPDX-License-Identifier: MIT
// Where the values of a block of keys lie as an operand of wgmma in e4m3: transposed, as that takes
// 8-bit operands with rows along N alone. A tile is a row of keys, BlockSize bytes, for each
// channel, as it lies in shared memory, swizzled. No CUDA is needed to read this.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MSA_HOST_DEVICE __host__ __device__
#else
#define MSA_HOST_DEVICE
#endif

namespace msa::cuda {

MSA_HOST_DEVICE constexpr int transposed_tile_bytes(int head_dim, int block_size) {
    return head_dim * block_size;
}

/// Key of a block that stands at a place of a row. Weights come as sums of the product before: a
/// thread of a quad has keys 2 quad, 2 quad + 1 of every 8. As an operand it holds places 4 quad to
/// 4 quad + 3 of every 16. So the keys of every 16 are put in the order that makes the weights an
/// operand as they are.
MSA_HOST_DEVICE constexpr int key_at(int place) {
    const int quad = place / 4 % 4, half = place / 2 % 2;
    return place / 16 * 16 + 8 * half + 2 * quad + place % 2;
}

/// Byte of a row's 16 places from 16 `chunk` on: the swizzle of rows of `row_bytes`, 64 or 128.
MSA_HOST_DEVICE constexpr int swizzled_chunk(int row, int chunk, int row_bytes) {
    const int lines = row * row_bytes / 128;  // of 128 bytes
    return row * row_bytes + ((chunk ^ (lines % (row_bytes / 16))) << 4);
}

}  // namespace msa::cuda

#undef MSA_HOST_DEVICE
