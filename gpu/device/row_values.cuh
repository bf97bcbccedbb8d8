// SPDX-License-Identifier: MIT
// One value per row and block, for index_select and block_mass: reduced from a tile of scores as
// the tensor cores leave them, and kept until a warp has some blocks of its rows.
//
// Scores are those of gpu/device/stream_mma.cuh and gpu/device/wgmma.cuh: element 4 j + 2 side + i
// of a lane is row lane / 4 + 8 side, column 8 j + 2 (lane % 4) + i.
#pragma once

#include "gpu/device/max_or_nan.cuh"

namespace msa::cuda {

/// The maximum of the first or second of this thread's rows over the thread's columns of the tile's
/// n-th block. NaN if one of them is NaN.
template <int BlockSize, int Sums, typename Sum>
__device__ Sum own_max(const Sum (&sum)[Sums], int side, int n) {
    const int first = n * (BlockSize / 8), last = first + BlockSize / 8;
    Sum m[2] = {sum[4 * first + 2 * side], sum[4 * first + 2 * side + 1]};
#pragma unroll
    for (int j = first + 1; j < last; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) m[i] = max_or_nan(m[i], sum[4 * j + 2 * side + i]);
    return max_or_nan(m[0], m[1]);
}
/// The largest of the four threads that share a row; NaN if one of them is NaN.
template <typename Sum>
__device__ Sum shared_max(Sum best) {
    best = max_or_nan(best, __shfl_xor_sync(kAllLanes, best, 1));
    return max_or_nan(best, __shfl_xor_sync(kAllLanes, best, 2));
}

/// The maximum of the row over all columns of the block.
template <int BlockSize, int Sums, typename Sum>
__device__ Sum row_max(const Sum (&sum)[Sums], int side, int n) {
    return shared_max(own_max<BlockSize>(sum, side, n));
}

/// Per-warp buffer of 32 values for each of the tile's rows, written by accumulator layout and read
/// by row. Columns are permuted against bank conflicts.
template <typename Rows>
struct RowBuffer {
    float value[Rows::kRows][kWarp];
    __device__ float& at(int row, int column) { return value[row][column ^ (row & 31)]; }
};

}  // namespace msa::cuda
