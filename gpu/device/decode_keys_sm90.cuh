// SPDX-License-Identifier: MIT
// The products of a warp of the decode kernel with its keys of a tile: scores and weighted values
// of 16 heads, by mma.sync. Those of e4m3 are in decode_keys_e4m3.cuh.
#pragma once

#include "gpu/device/attend_sm90.cuh"
#include "gpu/device/mma.cuh"

namespace msa::cuda::sm90 {

constexpr int kDecodeWarps = 4;
/// Keys of a block that one warp takes, a multiple of 16, the depth of a product.
template <int BlockSize>
constexpr int kWarpKeys = BlockSize / kDecodeWarps < 16 ? 16 : BlockSize / kDecodeWarps;

/// Address of 16 bytes of a swizzled tile: channels from 8 chunk on of one key.
template <int KeyBox>
__device__ char* chunk_of(char* tile, int key, int chunk) {
    return tile + chunk / 8 * KeyBox + key * kSwizzle + ((chunk % 8 ^ key % 8) << 4);
}

/// sum [16, keys] of this warp = rows x its keys, which begin at key `first`.
template <typename T, int Dim, int BlockSize>
__device__ void scores_of(float (&sum)[kWarpKeys<BlockSize> / 2], const uint32_t (&rows)[Dim / 4],
                          char* k, int first) {
    constexpr int kKeyBox = AttendShape<Dim, BlockSize>::kKeyBox;
    const int lane = threadIdx.x % kWarp;
    for (float& x : sum) x = 0;
#pragma unroll
    for (int tile = 0; tile < kWarpKeys<BlockSize> / 8; ++tile)
#pragma unroll
        for (int s = 0; s < Dim / 16; s += 2) {
            uint32_t keys[4];  // of steps s and s + 1
            load_matrices(keys,
                          chunk_of<kKeyBox>(k, first + 8 * tile + lane % 8, 2 * s + lane / 8));
            multiply_16x8<T>(sum + 4 * tile, rows + 4 * s, keys);
            multiply_16x8<T>(sum + 4 * tile, rows + 4 * s + 4, keys + 2);
        }
}

/// out [16, Dim] += P x this warp's values.
template <typename T, int Dim, int BlockSize>
__device__ void add_values(float (&out)[Dim / 2], const float (&p)[kWarpKeys<BlockSize> / 2],
                           char* v, int first) {
    constexpr int kKeyBox = AttendShape<Dim, BlockSize>::kKeyBox;
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int step = 0; step < kWarpKeys<BlockSize> / 16; ++step) {
        uint32_t weights[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            weights[i] = pack<T>(p[8 * step + 2 * i], p[8 * step + 2 * i + 1]);
        const int key = first + 16 * step + lane % 16;
#pragma unroll
        for (int tile = 0; tile < Dim / 8; tile += 2) {
            uint32_t values[4];
            load_transposed(values, chunk_of<kKeyBox>(v, key, tile + lane / 16));
            multiply_16x8<T>(out + 4 * tile, weights, values);
            multiply_16x8<T>(out + 4 * tile + 4, weights, values + 2);
        }
    }
}

/// Sets the values of this warp's keys [seen, ...), of Chunks times 16 bytes, to 0, because they
/// may hold anything.
template <int Chunks, int BlockSize>
__device__ void clear_unseen(char* v, int first, int seen) {
    constexpr int kKeys = kWarpKeys<BlockSize>;
    if (seen >= first + kKeys) return;
    const int from = max(seen, first);
    for (int i = threadIdx.x % kWarp; i < (first + kKeys - from) * Chunks; i += kWarp)
        *reinterpret_cast<uint4*>(
            chunk_of<BlockSize * kSwizzle>(v, from + i / Chunks, i % Chunks)) = {};
    __syncwarp();
}

}  // namespace msa::cuda::sm90
