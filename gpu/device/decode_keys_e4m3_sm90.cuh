// SPDX-License-Identifier: MIT
// decode_keys_sm90.cuh for e4m3 operands. They are converted to f16 in registers, which is exact.
// That is affordable, since a single query needs few products, and it keeps float sums.
//
// Channels of a product, and of the result, are in the order that makes the conversion cheap:
//   scores   a thread of a quad has channels 4 quad to 4 quad + 3 of every 16, of rows and of keys
//   outputs  out[8 t + 4 odd + 2 side + i] is channel 16 t + 4 quad + 2 i + odd
#pragma once

#include "gpu/device/attend_e4m3_sm90.cuh"
#include "gpu/device/decode_keys_sm90.cuh"
#include "gpu/kernels/sparse_attention_decode_sm90.h"

namespace msa::cuda::sm90 {

/// Four e4m3 values as f16, two to a word.
__device__ inline void widen(uint32_t four, uint32_t& low, uint32_t& high) {
    asm("{\n"
        ".reg .b16 a, b;\n"
        "mov.b32 {a, b}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, a;\n"
        "cvt.rn.f16x2.e4m3x2 %1, b;\n"
        "}\n"
        : "=r"(low), "=r"(high)
        : "r"(four));
}

/// sum [16, keys] of this warp = rows x its keys, which begin at key `first`.
template <int Dim, int BlockSize>
__device__ void scores_of_e4m3(float (&sum)[kWarpKeys<BlockSize> / 2],
                               const uint32_t (&rows)[Dim / 4], char* k, int first) {
    constexpr int kKeyBox = BlockSize * kSwizzle;
    const int lane = threadIdx.x % kWarp;
    for (float& x : sum) x = 0;
#pragma unroll
    for (int tile = 0; tile < kWarpKeys<BlockSize> / 8; ++tile)
#pragma unroll
        for (int chunk = 0; chunk < Dim / 16; chunk += 4) {
            uint32_t words[4];  // of 16 channels each
            load_matrices(words,
                          chunk_of<kKeyBox>(k, first + 8 * tile + lane % 8, chunk + lane / 8));
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                uint32_t keys[2];
                widen(words[n], keys[0], keys[1]);
                multiply_16x8<__half>(sum + 4 * tile, rows + 4 * (chunk + n), keys);
            }
        }
}

/// out [16, Dim] += P x this warp's values.
template <int Dim, int BlockSize>
__device__ void add_values_e4m3(float (&out)[Dim / 2], const float (&p)[kWarpKeys<BlockSize> / 2],
                                char* v, int first) {
    constexpr int kKeyBox = BlockSize * kSwizzle;
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int step = 0; step < kWarpKeys<BlockSize> / 16; ++step) {
        uint32_t weights[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            weights[i] = pack<__half>(p[8 * step + 2 * i], p[8 * step + 2 * i + 1]);
        const int key = first + 16 * step + lane % 16;
#pragma unroll
        for (int chunk = 0; chunk < Dim / 16; chunk += 2) {
            uint32_t words[4];  // two channels of two keys each: 8 keys, 8 more, the next chunk
            load_transposed(words, chunk_of<kKeyBox>(v, key, chunk + lane / 16));
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

/// Sets the values of this warp's keys [seen, ...) to 0, because they may hold anything.
template <int Dim, int BlockSize>
__device__ void clear_unseen_e4m3(char* v, int first, int seen) {
    constexpr int kKeys = kWarpKeys<BlockSize>, kChunks = Dim / 16;
    if (seen >= first + kKeys) return;
    const int from = max(seen, first);
    for (int i = threadIdx.x % kWarp; i < (first + kKeys - from) * kChunks; i += kWarp)
        *reinterpret_cast<uint4*>(
            chunk_of<BlockSize * kSwizzle>(v, from + i / kChunks, i % kChunks)) = {};
    __syncwarp();
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
template <int Dim>
__device__ void read_queries_e4m3(const SparseDecodeArgs& args, int64_t first_row, int heads,
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

}  // namespace msa::cuda::sm90
