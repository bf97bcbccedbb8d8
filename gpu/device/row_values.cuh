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

/// Of the maxima of a tile's blocks, each of the four threads that share two rows keeps so many.
/// Thread n has the row of side n % 2. Of several blocks it has n / 2, n / 2 + 2 and so on; of a
/// single one, threads 2 and 3 have the same as 0 and 1.
template <int BlockSize, int Sums>
constexpr int kKeptMaxima = 2 * Sums > BlockSize ? Sums / BlockSize : 1;

/// The largest integers that this thread keeps, over all columns of a block.
template <int BlockSize, int Sums>
__device__ void keep_integers(const int (&sum)[Sums], int (&best)[kKeptMaxima<BlockSize, Sums>]) {
    constexpr int kBlocks = 2 * Sums / BlockSize;
    const auto exchange = [](int first, int second, int with) {
        const bool second_here = (threadIdx.x & with) != 0;
        const int there = __shfl_xor_sync(kAllLanes, second_here ? first : second, with);
        return max(second_here ? second : first, there);
    };
    int of_row[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
        of_row[b] = exchange(own_max<BlockSize>(sum, 0, b), own_max<BlockSize>(sum, 1, b), 1);
    if constexpr (kBlocks == 1)
        best[0] = max(of_row[0], __shfl_xor_sync(kAllLanes, of_row[0], 2));
    else
#pragma unroll
        for (int n = 0; n < kBlocks / 2; ++n)
            best[n] = exchange(of_row[2 * n], of_row[2 * n + 1], 2);
}

/// The maxima that this thread keeps, over all columns of a block. `ignores_negative`: of a
/// negative one, the sign alone need be right.
template <int BlockSize, int Sums>
__device__ void keep_maxima(const int (&sum)[Sums], float (&best)[kKeptMaxima<BlockSize, Sums>],
                            bool /*ignores_negative*/) {
    int most[kKeptMaxima<BlockSize, Sums>];
    keep_integers<BlockSize>(sum, most);
#pragma unroll
    for (int n = 0; n < kKeptMaxima<BlockSize, Sums>; ++n) best[n] = static_cast<float>(most[n]);
}
/// Floats are compared as integers of the same bits, three of which Hopper compares at once. The
/// order of non-negative ones stays, that of negative ones is reversed. NaN, which the tensor
/// cores write as 0x7fffffff, is above all. So the largest integer is the maximum, unless all of a
/// row and block are negative: then the smallest is.
template <int BlockSize, int Sums>
__device__ void keep_maxima(const float (&sum)[Sums], float (&best)[kKeptMaxima<BlockSize, Sums>],
                            bool ignores_negative) {
    constexpr int kKept = kKeptMaxima<BlockSize, Sums>;
    int bits[Sums], most[kKept];
#pragma unroll
    for (int n = 0; n < Sums; ++n) bits[n] = __float_as_int(sum[n]);
    keep_integers<BlockSize>(bits, most);
    bool negative = false;
#pragma unroll
    for (int n = 0; n < kKept; ++n) negative |= most[n] < 0;
    if (__any_sync(kAllLanes, negative && !ignores_negative)) {
        int least[kKept];
#pragma unroll
        for (int n = 0; n < Sums; ++n) bits[n] = ~bits[n];
        keep_integers<BlockSize>(bits, least);
#pragma unroll
        for (int n = 0; n < kKept; ++n)
            if (most[n] < 0) most[n] = ~least[n];
    }
#pragma unroll
    for (int n = 0; n < kKept; ++n) best[n] = __int_as_float(most[n]);
}

/// Per-warp buffer of 32 values for each of the tile's rows, written by accumulator layout and read
/// by row. Columns are permuted against bank conflicts.
template <typename Rows>
struct RowBuffer {
    float value[Rows::kRows][kWarp];
    __device__ float& at(int row, int column) { return value[row][column ^ (row & 31)]; }
};

}  // namespace msa::cuda
