// SPDX-License-Identifier: MIT
// The products of a warp of a decode kernel with e4m3 keys and values, on every architecture. They
// are converted to f16 in registers, which is exact. That is affordable, since a single query needs
// few products, and it keeps float sums.
//
// chunk_at(key, chunk) is the address in shared memory of 16 channels of a key of the tile, from
// channel 16 chunk on.
//
// Channels of a product, and of the result, are in the order that makes the conversion cheap:
//   scores   a thread of a quad has channels 4 quad to 4 quad + 3 of every 16, of rows and of keys
//   outputs  out[8 t + 4 odd + 2 side + i] is channel 16 t + 4 quad + 2 i + odd
#pragma once

#include "gpu/device/e4m3.cuh"
#include "gpu/device/mma.cuh"

namespace msa::cuda {

/// sum [16, Keys] of this warp = rows x its keys, which begin at key `first`.
template <int Dim, int Sums, typename ChunkAt>
__device__ void scores_of_e4m3(float (&sum)[Sums], const uint32_t (&rows)[Dim / 4],
                               const ChunkAt& chunk_at, int first) {
    const int lane = threadIdx.x % kWarp;
    for (float& x : sum) x = 0;
#pragma unroll
    for (int tile = 0; tile < Sums / 4; ++tile)
#pragma unroll
        for (int chunk = 0; chunk < Dim / 16; chunk += 4) {
            uint32_t words[4];  // of 16 channels each
            load_matrices(words, chunk_at(first + 8 * tile + lane % 8, chunk + lane / 8));
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                uint32_t keys[2];
                widen(words[n], keys[0], keys[1]);
                multiply_16x8<__half>(sum + 4 * tile, rows + 4 * (chunk + n), keys);
            }
        }
}

/// out [16, Dim] += P x this warp's values.
template <int Dim, int Weights, typename ChunkAt>
__device__ void add_values_e4m3(float (&out)[Dim / 2], const float (&p)[Weights],
                                const ChunkAt& chunk_at, int first) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int step = 0; step < Weights / 8; ++step) {
        uint32_t weights[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            weights[i] = pack<__half>(p[8 * step + 2 * i], p[8 * step + 2 * i + 1]);
        const int key = first + 16 * step + lane % 16;
#pragma unroll
        for (int chunk = 0; chunk < Dim / 16; chunk += 2) {
            uint32_t words[4];  // two channels of two keys each: 8 keys, 8 more, the next chunk
            load_transposed(words, chunk_at(key, chunk + lane / 16));
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                uint32_t even[2], odd[2];
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    widen(__byte_perm(words[2 * n + half], 0, 0x3120), even[half], odd[half]);
                multiply_16x8<__half>(out + 8 * (chunk + n), weights, even);
                multiply_16x8<__half>(out + 8 * (chunk + n) + 4, weights, odd);
            }
        }
    }
}

// Bypasses L1, because the previous kernel may have written the scales.
__device__ inline float fresh_scale(const DeviceScales& scales, int64_t at) {
    return scales.data == nullptr ? 1.0F : __ldcg(scales.data + at * scales.step);
}
__device__ inline BlockScales fresh_block_scales(const AttentionScales& scales, int64_t at) {
    return block_scales(fresh_scale(scales.k, at), fresh_scale(scales.v, at));
}

/// 16 heads from `first_row` on as an operand (0 from `heads` on), and the factors that turn their
/// products into base-2 logits.
template <int Dim, typename Args>
__device__ void read_queries_e4m3(const Args& args, int64_t first_row, int heads,
                                  uint32_t (&rows)[Dim / 4], float (&scale)[2]) {
    const auto* const q = static_cast<const uint32_t*>(args.q) + first_row * (Dim / 4);
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        const int head = lane / 4 + 8 * side;
#pragma unroll
        for (int s = 0; s < Dim / 16; ++s)
            widen(head < heads ? __ldcg(q + head * (Dim / 4) + 4 * s + lane % 4) : 0,
                  rows[4 * s + side], rows[4 * s + 2 + side]);
        scale[side] = args.scale * kLog2E *
                      (head < heads ? fresh_scale(args.scales.q, first_row + head) : 1.0F);
    }
}

/// Stores row `side` of a thread's two rows of outputs to a row of floats.
template <typename T, int Outs>
__device__ void put_outputs(const float (&out)[Outs], int side, float* to) {
    const int quad = threadIdx.x % 4;
    if constexpr (kIsE4m3<T>) {
#pragma unroll
        for (int j = 0; j < Outs; j += 8)
            *reinterpret_cast<float4*>(to + 2 * j + 4 * quad) = {
                out[j + 2 * side], out[j + 4 + 2 * side], out[j + 2 * side + 1],
                out[j + 5 + 2 * side]};
    } else {
#pragma unroll
        for (int j = 0; j < Outs / 4; ++j)
            *reinterpret_cast<float2*>(to + 8 * j + 2 * quad) = {out[4 * j + 2 * side],
                                                                 out[4 * j + 2 * side + 1]};
    }
}

}  // namespace msa::cuda
