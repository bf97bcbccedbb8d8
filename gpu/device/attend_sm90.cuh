// SPDX-License-Identifier: MIT
// What the kernels of sparse_attention share: 128 rows (queries x the G heads of a group) against
// one key block, two consumer warpgroups of 64 rows each.
#pragma once

#include "gpu/device/half_pair.cuh"
#include "gpu/device/pipeline_sm90.cuh"
#include "gpu/device/score_tiles_sm90.cuh"
#include "gpu/device/softmax_sm90.cuh"
#include "gpu/device/warp.cuh"

namespace msa::cuda::sm90 {

constexpr int kAttendRows = 128;
using AttendRows = TileRows<2, 1>;

template <int Dim, int BlockSize>
struct AttendShape {
    static constexpr int kBoxes = Dim / 64;
    static constexpr int kQueryBox = kAttendRows * kSwizzle;  // bytes
    static constexpr int kKeyBox = BlockSize * kSwizzle;
    static constexpr int kQueryBytes = kBoxes * kQueryBox;
    static constexpr int kKeyBytes = kBoxes * kKeyBox;
};

/// Starts sum = 64 rows of Q, in boxes of `Rows`, times the block's keys.
template <typename T, int Dim, int BlockSize, int Rows>
__device__ void start_scores(float (&sum)[BlockSize / 2], const char* q, const char* k) {
    using S = AttendShape<Dim, BlockSize>;
    const uint32_t rows = operand_low(shared_address(q)), keys = operand_low(shared_address(k));
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < Dim / 16; ++s)
        multiply_in<T>(sum, operand(rows, s / 4 * Rows * kSwizzle + s % 4 * 32),
                       operand(keys, s / 4 * S::kKeyBox + s % 4 * 32), s > 0);
    wgmma_commit();
}

/// Starts out += P times the block's values.
template <typename T, int Dim, int BlockSize>
__device__ void start_values(float (&out)[Dim / 2], const uint32_t (&p)[BlockSize / 4],
                             const char* v, bool add) {
    using S = AttendShape<Dim, BlockSize>;
    const uint32_t values = operand_low(shared_address(v), S::kKeyBox);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < BlockSize / 16; ++s)
        multiply_in<T, true>(out, p + 4 * s, operand(values, s * 16 * kSwizzle), add || s > 0);
    wgmma_commit();
}

/// Rows of slots lie as the products leave them, not in the order of channels: the n-th pair of a
/// thread's chunk i are channels 8 (4 i + n) + 2 (thread % 4) and the next. Which 16 bytes of the
/// slots these are, fewer than 2^31; odd rows swap halves, against bank conflicts.
template <int Dim>
__device__ int slot_chunk(int row, int i) {
    const int even = row * (Dim / 8) + 4 * (row & 1) + static_cast<int>(threadIdx.x) % 4;
    return (i % 2 == 0 ? even : even ^ 4) + i / 2 * 8;
}

/// One of this thread's rows times `factor` in T, to a row of the slots.
template <typename T, int Outs>
__device__ void store_slot(const float (&out)[Outs], int side, float factor, void* slots, int row) {
#pragma unroll
    for (int i = 0; i < Outs / 16; ++i) {
        uint32_t word[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const int j = 4 * (4 * i + n) + 2 * side;
            word[n] = pack<T>(out[j] * factor, out[j + 1] * factor);
        }
        __stcs(static_cast<uint4*>(slots) + slot_chunk<2 * Outs>(row, i),
               make_uint4(word[0], word[1], word[2], word[3]));
    }
}

/// Adds `weight` times a chunk of a slot's row to one of this thread's rows.
template <typename T, int Outs>
__device__ void add_chunk(float (&out)[Outs], int side, int i, uint4 chunk, float weight) {
    const uint32_t word[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const int j = 4 * (4 * i + n) + 2 * side;
        const float2 two = unpack<T>(word[n]);
        out[j] = fmaf(weight, two.x, out[j]);
        out[j + 1] = fmaf(weight, two.y, out[j + 1]);
    }
}

/// Has one of this thread's two rows a NaN in its columns?
template <int Outs>
__device__ bool has_nan(const float (&out)[Outs], int side, float factor) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < Outs / 4; ++j) sum += out[4 * j + 2 * side] + out[4 * j + 2 * side + 1];
    return isnan(sum * factor);
}

/// Stores one of this thread's two rows in T: `to` is the row's first element, 16-byte aligned.
/// All four threads of the row take part; those with `wanted` false store nothing.
template <typename T, int Outs>
__device__ void store_row(const float (&out)[Outs], int side, float factor, bool wanted, void* to) {
    const int quad = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < Outs / 4; j += 4) {
        uint32_t word[4];  // of columns 8 (j + n) + 2 quad; becomes those of 8 (j + quad) + 2 n
#pragma unroll
        for (int n = 0; n < 4; ++n)
            word[n] = pack<T>(out[4 * (j + n) + 2 * side] * factor,
                              out[4 * (j + n) + 2 * side + 1] * factor);
#pragma unroll
        for (int step = 1; step < 4; step *= 2)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                if (n & step) continue;
                const bool upper = (quad & step) != 0;
                const uint32_t got =
                    __shfl_xor_sync(kAllLanes, upper ? word[n] : word[n + step], step);
                word[n] = upper ? got : word[n];
                word[n + step] = upper ? word[n + step] : got;
            }
        if (wanted)
            __stcs(static_cast<uint4*>(to) + j + quad,
                   make_uint4(word[0], word[1], word[2], word[3]));
    }
}

}  // namespace msa::cuda::sm90
