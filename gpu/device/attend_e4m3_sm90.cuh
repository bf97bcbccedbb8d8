// SPDX-License-Identifier: MIT
// attend_sm90.cuh for e4m3 operands and their scales.
//
// Tensor cores keep only 13 bits of an e4m3 sum. So P V of each block starts a new sum, which is
// then added to the output in float.
#pragma once

#include "gpu/device/attend_sm90.cuh"
#include "gpu/device/e4m3.cuh"
#include "gpu/device/pipeline_sm90.cuh"
#include "gpu/device/wgmma_e4m3.cuh"
#include "gpu/e4m3_layout.h"

namespace msa::cuda::sm90 {

/// Bytes of the operands in shared memory, and the number of stages, each one block of keys (in the
/// union kernel: one step).
template <typename T, int Dim, int BlockSize>
struct OperandShape : AttendShape<Dim, BlockSize> {
    static constexpr int kValueBytes = AttendShape<Dim, BlockSize>::kKeyBytes;
    static constexpr int kStages = Dim == 64 ? 3 : 2;
};
/// A row of q or k takes one box of 128 bytes; with Dim 64, half of it is unused.
template <int Dim, int BlockSize>
struct OperandShape<__nv_fp8_e4m3, Dim, BlockSize> {
    static constexpr int kBoxes = 1;
    static constexpr int kQueryBox = kAttendRows * kSwizzle, kKeyBox = BlockSize * kSwizzle;
    static constexpr int kQueryBytes = kQueryBox, kKeyBytes = kKeyBox;
    static constexpr int kValueBytes = transposed_tile_bytes(Dim, BlockSize);
    static constexpr int kStages = 4;
};

/// operand() for transposed values, whose rows have 32, 64 or 128 bytes.
template <int RowBytes>
__device__ uint64_t value_operand(uint32_t low, int bytes) {
    constexpr uint64_t kSwizzleKind = RowBytes == 128 ? 1 : RowBytes == 64 ? 2 : 3;
    constexpr uint64_t kHigh = (kSwizzleKind << 62) | (uint64_t{RowBytes * 8 >> 4} << 32);
    return kHigh | (low + static_cast<uint32_t>(bytes >> 4));
}

/// Starts sum = 64 rows of Q times the block's keys. q and k are what operand_low() returns.
template <int Dim, int BlockSize>
__device__ void start_scores_e4m3(float (&sum)[BlockSize / 2], uint32_t q, uint32_t k) {
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < Dim / 32; ++s)
        multiply_e4m3(sum, operand(q, 32 * s), operand(k, 32 * s), s > 0);
    wgmma_commit();
}

/// Starts part = P times `Channels` channels of the block's values, which begin at `v`.
template <int Channels, int BlockSize>
__device__ void start_values_e4m3(float (&part)[Channels / 2], const uint32_t (&p)[BlockSize / 8],
                                  uint32_t v) {
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < BlockSize / 32; ++s)
        multiply_e4m3(part, p + 4 * s, value_operand<BlockSize>(v, 32 * s), s > 0);
    wgmma_commit();
}

/// keep_weights() for bf16 or f16 weights in `Parts` equal parts. Parts with any[part] false become
/// 0.
template <typename T, int Words, int Weights, int Parts>
__device__ void keep_weights_where(uint32_t (&p)[Words], const float (&weight)[Weights],
                                   const bool (&any)[Parts]) {
    static_assert(Weights == 2 * Words);
    constexpr int kPart = Words / Parts;
#pragma unroll
    for (int part = 0; part < Parts; ++part) {
        if (any[part]) {
#pragma unroll
            for (int n = part * kPart; n < (part + 1) * kPart; ++n)
                p[n] = pack<T>(weight[2 * n], weight[2 * n + 1]);
        } else {
#pragma unroll  // volatile, else zeros are written in every step, before the weights
            for (int n = part * kPart; n < (part + 1) * kPart; ++n)
                asm volatile("mov.b32 %0, 0;" : "=r"(p[n]));
        }
    }
}

/// Copies into other registers. The compiler must not move the copy, since products may read `to`
/// until here.
template <int N>
__device__ void move_words(uint32_t (&to)[N], const uint32_t (&from)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("mov.b32 %0, %1;" : "=r"(to[i]) : "r"(from[i]));
}

/// start_scores() for all operand types.
template <typename T, int Dim, int BlockSize, int Rows>
__device__ void start_scores_of(float (&sum)[BlockSize / 2], const char* q, const char* k) {
    if constexpr (kIsE4m3<T>)
        start_scores_e4m3<Dim, BlockSize>(sum, operand_low(shared_address(q)),
                                          operand_low(shared_address(k)));
    else
        start_scores<T, Dim, BlockSize, Rows>(sum, q, k);
}

/// out += P times the values of a block. In bf16 and f16 the tensor cores add to `out` themselves.
template <typename T, int Dim, int BlockSize>
struct ValueSums {
    __device__ void start(float (&out)[Dim / 2], const uint32_t (&p)[BlockSize / 4], const char* v,
                          bool add) {
        start_values<T, Dim, BlockSize>(out, p, v, add);
    }
    template <typename Work>
    __device__ void end(float (&)[Dim / 2], const uint32_t (&)[BlockSize / 4], const char*,
                        Work&& work) {
        work();
        wgmma_wait<0>();
    }
};
/// e4m3: each block starts new sums, 64 channels at a time, which are then added to out. work()
/// overlaps with the second half.
template <int Dim, int BlockSize>
struct ValueSums<__nv_fp8_e4m3, Dim, BlockSize> {
    static constexpr int kChannels = 64;
    float part[kChannels / 2];

    __device__ void start_at(const uint32_t (&p)[BlockSize / 8], const char* v, int channel) {
        start_values_e4m3<kChannels, BlockSize>(
            part, p, operand_low(shared_address(v) + static_cast<uint32_t>(channel * BlockSize)));
    }
    __device__ void add_at(float (&out)[Dim / 2], int channel) {
        wgmma_wait<0>();
        settle(part);
#pragma unroll
        for (int i = 0; i < kChannels / 2; ++i) out[channel / 2 + i] += part[i];
    }
    __device__ void start(float (&)[Dim / 2], const uint32_t (&p)[BlockSize / 8], const char* v,
                          bool) {
        start_at(p, v, 0);
    }
    template <typename Work>
    __device__ void end(float (&out)[Dim / 2], const uint32_t (&p)[BlockSize / 8], const char* v,
                        Work&& work) {
        add_at(out, 0);
        if constexpr (Dim > kChannels) start_at(p, v, kChannels);
        work();
        if constexpr (Dim > kChannels) add_at(out, kChannels);
    }
};

}  // namespace msa::cuda::sm90
