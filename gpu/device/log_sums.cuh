// SPDX-License-Identifier: MIT
// The epilogue of the products of block_mass and of the lse of index_select: base-2 logs of sums of
// exponentials, one per row and block.
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
    const int left = seen - 2 * (lane_id() % 4);  // from the thread's first column on
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (8 * j + i >= left) sum[4 * j + 2 * side + i] = -INFINITY;
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

/// The same in steps, of a block that comes in parts. A thread adds up its own columns; the four
/// threads of a row meet at the end alone.
struct RunningLogSum {
    float best, total;  // of the thread's columns, base 2: the largest, and the sum relative to it

    /// Adds the columns of the tile's n-th block, or part of a block. `more`: others were added.
    template <int BlockSize, int Sums>
    __device__ void add(const float (&sum)[Sums], int side, int n, float scale, bool more) {
        const int first = n * (BlockSize / 8), last = first + BlockSize / 8;
        const float most = own_max<BlockSize>(sum, side, n) * scale;
        const float now = more ? max_or_nan(best, most) : most, shift = log_reference(now);
        float sums[2] = {more ? total * exp2_fast(best - shift) : 0, 0};
#pragma unroll
        for (int j = first; j < last; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                sums[i] += exp2_fast(fmaf(sum[4 * j + 2 * side + i], scale, -shift));
        best = now, total = sums[0] + sums[1];
    }
    __device__ float joined() const {
        const float shift = log_reference(shared_max(best));
        float all = total * exp2_fast(best - shift);
        all += __shfl_xor_sync(kAllLanes, all, 1);
        all += __shfl_xor_sync(kAllLanes, all, 2);
        return shift + log2f(all);
    }
};

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
