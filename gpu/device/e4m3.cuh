// SPDX-License-Identifier: MIT
// What the kernels of sparse_attention do otherwise with e4m3 operands than with those of 16 bits,
// on every architecture.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "gpu/device/half_pair.cuh"
#include "gpu/device/scaled_softmax.cuh"
#include "gpu/device/softmax.cuh"
#include "gpu/operand_scales.h"

namespace msa::cuda {

template <typename T>
constexpr bool kIsE4m3 = std::is_same_v<T, __nv_fp8_e4m3>;

/// Type of slots and outputs of operands of type T.
template <typename T>
using Stored = std::conditional_t<kIsE4m3<T>, __nv_bfloat16, T>;

template <typename T>
using RunningSoftmax = std::conditional_t<kIsE4m3<T>, ScaledSoftmax, Softmax>;

/// log2 of the unit of a row's sum and outputs. `scale` turns products of 16-bit operands into
/// base-2 logits.
__device__ inline float best_of(const Softmax& softmax, int side, float scale) {
    return softmax.reference[side] * scale;
}
__device__ inline float best_of(const ScaledSoftmax& softmax, int side, float) {
    return softmax.best(side);
}

/// Of (block, group) number `at` over all sequences.
__device__ inline BlockScales block_scales_at(const AttentionScales& scales, int64_t at) {
    return block_scales(scales.k.at(at), scales.v.at(at));
}

/// Packs four values as e4m3, the first in the lowest byte.
__device__ inline uint32_t pack_e4m3(float a, float b, float c, float d) {
    uint32_t word = 0;
#if __CUDA_ARCH__ >= 890
    asm("{\n"
        ".reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n"
        "}\n"
        : "=r"(word)
        : "f"(a), "f"(b), "f"(c), "f"(d));
#else
    __trap();  // not launched: kFirstOfE4m3 of gpu/plan/limits.h
#endif
    return word;
}
/// Converts weights from the accumulator layout of one product to the operand, of type T, of the
/// next. For the order of keys in e4m3 see key_at().
template <typename T, int Words, int Weights>
__device__ void keep_weights(uint32_t (&p)[Words], const float (&weight)[Weights]) {
    static_assert(Weights == static_cast<int>(4 / sizeof(T)) * Words);
#pragma unroll
    for (int n = 0; n < Words; ++n) {
        if constexpr (kIsE4m3<T>) {
            const int at = 8 * (n / 2) + 2 * (n % 2);  // group of keys n / 2, side n % 2 of the row
            p[n] = pack_e4m3(weight[at], weight[at + 1], weight[at + 4], weight[at + 5]);
        } else {
            p[n] = pack<T>(weight[2 * n], weight[2 * n + 1]);
        }
    }
}

/// Four e4m3 values as f16, two to a word.
__device__ inline void widen(uint32_t four, uint32_t& low, uint32_t& high) {
#if __CUDA_ARCH__ >= 890
    asm("{\n"
        ".reg .b16 a, b;\n"
        "mov.b32 {a, b}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, a;\n"
        "cvt.rn.f16x2.e4m3x2 %1, b;\n"
        "}\n"
        : "=r"(low), "=r"(high)
        : "r"(four));
#else
    low = high = 0;
    __trap();  // likewise
#endif
}

}  // namespace msa::cuda
