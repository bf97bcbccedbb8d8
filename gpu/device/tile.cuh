// SPDX-License-Identifier: MIT
// The arithmetic that the plain kernels share. A thread block holds a tile of rows (query, head)
// and 32 keys at a time as floats in shared memory. Each warp owns a few rows, and each of its
// lanes one key. The lanes hold 256 channels of a sum; two warps own wider rows together, and each
// sums half of the channels.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/problem.h"
#include "gpu/device/element.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/runtime.h"

namespace msa::cuda {

inline constexpr int kRowsPerWarp = 4;
inline constexpr int kPlainTileRows = 32;
inline constexpr int kPlainTileKeys = kWarp;
inline constexpr int kWarpDims = 256, kDimsPerLane = kWarpDims / kWarp;
inline constexpr int kWideTileRows = 8;

/// Most rows of a tile of `width` channels: the largest three tiles of a gradient fit into 99 KiB.
constexpr int tile_rows(int64_t width) {
    return width <= kWarpDims ? kPlainTileRows : kWideTileRows;
}
/// Warps that own a row.
constexpr int row_warps(int64_t width) { return width <= kWarpDims ? 1 : 2; }
static_assert(kMaxHeadDim <= 2 * kWarpDims);

/// Most threads of a block of the plain kernels, and how many such blocks should share a
/// multiprocessor: __launch_bounds__.
inline constexpr int kTileThreads = kPlainTileRows / kRowsPerWarp * kWarp, kTileBlocks = 2;

/// Warps that own `rows` rows.
constexpr int tile_warps(int rows, int64_t width) {
    return (rows + kRowsPerWarp - 1) / kRowsPerWarp * row_warps(width);
}
/// Rows that `warps` warps own.
constexpr int rows_of_warps(int warps, int64_t width) {
    return warps / row_warps(width) * kRowsPerWarp;
}

/// What a warp owns: rows from `row`, and of their sums the channels from `dim`.
struct WarpPlace {
    int row, dim;
};
__device__ inline WarpPlace warp_place(int width) {
    return {warp_id() / row_warps(width) * kRowsPerWarp, warp_id() % row_warps(width) * kWarpDims};
}
/// Rows of the thread block's tile.
__device__ inline int block_rows(int width) {
    return rows_of_warps(static_cast<int>(blockDim.x) / kWarp, width);
}

/// Floats from one row of a tile to the next: an odd number of float4, so that the lanes' rows lie
/// in different banks.
constexpr int tile_stride(int width) { return ((width + 3) / 4 | 1) * 4; }

/// Consecutive tiles in shared memory. The same calls of push() give the kernel the offsets and the
/// host the size.
struct TileStack {
    int floats = 0;

    /// Adds a tile and returns its offset in floats.
    constexpr int push(int rows, int width) {
        const int at = floats;
        floats += rows * tile_stride(width);
        return at;
    }
    constexpr int bytes() const { return floats * static_cast<int>(sizeof(float)); }
};

/// The shared memory of a tile of rows, and of 32 keys.
struct RowsAndKeys {
    TileStack stack;
    int rows, keys;

    constexpr RowsAndKeys(int row_count, int width)
        : rows(stack.push(row_count, width)), keys(stack.push(kPlainTileKeys, width)) {}
};

/// Fills `rows` rows of a tile. source(row) points to `width` values, or is null for a row of
/// zeros. scale(row) is the factor on its values. Columns from `width` on become zeros.
template <typename Source, typename Scale>
__device__ void stage(float* tile, int rows, int width, Source source, Scale scale) {
    const int stride = tile_stride(width), warps = static_cast<int>(blockDim.x) / kWarp;
    for (int row = warp_id(); row < rows; row += warps) {
        const auto* from = source(row);
        const float factor = from != nullptr ? scale(row) : 0.0F;
        for (int d = lane_id(); d < stride; d += kWarp)
            tile[row * stride + d] = from != nullptr && d < width ? load(from + d) * factor : 0.0F;
    }
}
template <typename Source>
__device__ void stage(float* tile, int rows, int width, Source source) {
    stage(tile, rows, width, source, [](int) { return 1.0F; });
}

/// dots[r] = row r . the lane's key.
template <int Rows>
__device__ void dot_products(const float* rows, const float* keys, int width, float (&dots)[Rows]) {
    const int vectors = tile_stride(width) / 4;
    const auto* row = reinterpret_cast<const float4*>(rows);
    const auto* key = reinterpret_cast<const float4*>(keys) + lane_id() * vectors;
    for (float& dot : dots) dot = 0;
    for (int i = 0; i < vectors; ++i) {
        const float4 b = key[i];
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
            const float4 a = row[r * vectors + i];
            dots[r] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
        }
    }
}

/// Sum of exp(logit - running_max) over the keys so far; the same in all lanes.
struct OnlineSum {
    float running_max = -INFINITY;
    float sum = 0;

    __device__ float lse() const { return sum == 0 ? -INFINITY : running_max + logf(sum); }
};

struct SoftmaxStep {
    float weight;  // exp(the lane's logit - the running maximum), 0 for a lane that is not seen
    float factor;  // earlier sums must be multiplied by it
};

/// Adds one logit of every lane from `hidden` to `seen` - 1, at least one, to the sums. NaN
/// propagates.
__device__ inline SoftmaxStep softmax_step(float logit, int seen, OnlineSum& state,
                                           int hidden = 0) {
    const bool mine = hidden <= lane_id() && lane_id() < seen;
    const float now = fmaxf(state.running_max, warp_max(mine ? logit : -INFINITY));
    const SoftmaxStep step{mine ? expf(logit - now) : 0.0F,
                           state.running_max == now ? 1.0F : expf(state.running_max - now)};
    state.running_max = now;
    state.sum = state.sum * step.factor + warp_sum(step.weight);
    return step;
}

/// How many of the keys [first, first + 32) lie before `end`.
__device__ inline int keys_before(int64_t end, int64_t first) {
    return static_cast<int>(max(int64_t{0}, min(end - first, int64_t{kPlainTileKeys})));
}

/// Sets the limit on a kernel's dynamic shared memory to `bytes`.
template <typename Kernel>
void allow_shared(Kernel* kernel, int bytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "asking for shared memory");
}

}  // namespace msa::cuda
