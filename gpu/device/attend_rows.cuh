// SPDX-License-Identifier: MIT
// Stores rows of attention, in the accumulator layout of wgmma.cuh and mma.cuh, to slots and to the
// result, and adds slots to them.
#pragma once

#include "gpu/device/half_pair.cuh"
#include "gpu/device/warp.cuh"

namespace msa::cuda {

/// The index, in units of 16 bytes, of this thread's chunk i of a row of the slots. Slots are below
/// 2^31 such units. A row has its channels in the order of the accumulators: the n-th pair of the
/// chunk is channel 8 (4 i + n) + 2 (thread % 4) and the next. Odd rows swap halves, against bank
/// conflicts.
template <int Dim>
__device__ int slot_chunk(int row, int i) {
    const int even = row * (Dim / 8) + 4 * (row & 1) + static_cast<int>(threadIdx.x) % 4;
    return (i % 2 == 0 ? even : even ^ 4) + i / 2 * 8;
}

/// Stores one of this thread's rows, times `factor` and rounded to T, to a row of the slots.
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

/// Whether row `side` of this thread's two has a NaN in the thread's columns.
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

}  // namespace msa::cuda
