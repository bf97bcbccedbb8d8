// SPDX-License-Identifier: MIT
// The layout of a block's values as an e4m3 operand of wgmma. They are transposed, because wgmma
// takes 8-bit operands only K-major. A tile has one row of keys, BlockSize bytes, per channel,
// swizzled as in shared memory. Compiles without CUDA.
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

/// The key of a block at position `place` of a row. Weights are the accumulators of the previous
/// product, where a thread of a quad has keys 2 quad and 2 quad + 1 of every 8. As an operand, it
/// must hold positions 4 quad to 4 quad + 3 of every 16. So every 16 keys are permuted such that
/// the accumulators are the operand without any exchange.
MSA_HOST_DEVICE constexpr int key_at(int place) {
    const int quad = place / 4 % 4, half = place / 2 % 2;
    return place / 16 * 16 + 8 * half + 2 * quad + place % 2;
}

/// Byte offset of the 16 bytes `chunk` of a row, swizzled for rows of `row_bytes`, 32, 64 or 128.
MSA_HOST_DEVICE constexpr int swizzled_chunk(int row, int chunk, int row_bytes) {
    const int lines = row * row_bytes / 128;  // of 128 bytes
    return row * row_bytes + ((chunk ^ (lines % (row_bytes / 16))) << 4);
}

}  // namespace msa::cuda

#undef MSA_HOST_DEVICE
