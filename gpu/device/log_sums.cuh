// SPDX-License-Identifier: MIT
// The epilogue of block_mass' products: base-2 logs of sums of exponentials, one per row and block.
#pragma once

#include "gpu/device/exp2.cuh"
#include "gpu/device/row_values.cuh"
#include "gpu/kernels/block_mass_sm90.h"

namespace msa::cuda {

/// Scores of keys that the row does not see become -inf; it sees the tile's first `seen`.
template <int Sums>
__device__ void mask_unseen(float (&sum)[Sums], int side, int seen) {
    constexpr int kKeys = 2 * Sums;
    if (seen >= kKeys) return;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (8 * j + 2 * (lane_id() % 4) + i >= seen) sum[4 * j + 2 * side + i] = -INFINITY;
}

/// The logarithms' reference: the largest of their summands, or 0 where all are -inf.
__device__ inline float log_reference(float best) { return best == -INFINITY ? 0 : best; }

/// Base-2 log of the sum of 2^(scale x) over the columns of the tile's n-th block of this thread's
/// row, over the four threads that share it; -inf where all are.
template <int BlockSize, int Sums>
__device__ float row_log_sum(const float (&sum)[Sums], int side, int n, float scale) {
    const int first = n * (BlockSize / 8), last = first + BlockSize / 8;
    const float shift = log_reference(row_max<BlockSize>(sum, side, n) * scale);
    float total[2] = {0, 0};
#pragma unroll
    for (int j = first; j < last; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            total[i] += exp2_fast(fmaf(sum[4 * j + 2 * side + i], scale, -shift));
    float all = total[0] + total[1];
    all += __shfl_xor_sync(kAllLanes, all, 1);
    all += __shfl_xor_sync(kAllLanes, all, 2);
    return shift + log2f(all);
}

/// The same of two parts of a block, from their log-sums.
__device__ inline float log_sum(float a, float b) {
    const float shift = log_reference(max_or_nan(a, b));
    return shift + log2f(exp2_fast(a - shift) + exp2_fast(b - shift));
}

/// Called by a warp: writes the first `columns` blocks of the buffer, from block `first_block` on,
/// of `Rows` rows of the tile from `first_row` on, to the workspace. Thread blocks in x are groups.
template <int Rows, typename Buffer>
__device__ void store_log_sums(const BlockMassArgs& args, const QueryTile& tile, Buffer& buffer,
                               int first_row, int first_block, int columns) {
    const int heads = args.query_heads / args.groups, group = static_cast<int>(blockIdx.x);
    const int lane = lane_id(), block = first_block + lane;
    __syncwarp();
    for (int row = first_row; row < first_row + Rows && row < tile.queries * heads; ++row) {
        if (lane >= columns || block >= args.blocks) continue;
        const int64_t query = tile.query - args.first_query + row / heads;
        const int64_t out_row = query * args.query_heads + group * heads + row % heads;
        args.block_lse[out_row * args.blocks + block] = buffer.at(row, lane);
    }
    __syncwarp();
}

}  // namespace msa::cuda
