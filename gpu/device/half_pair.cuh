// SPDX-License-Identifier: MIT
// Two neighbouring values of a type T of 16 bits, __nv_bfloat16 or __half, in a word; the first in
// the low half.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace msa::cuda {

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, __half>;

/// The exponent bits of a value. All are set if and only if it is not finite.
template <typename T>
inline constexpr uint32_t kExponentBits = kIsHalf<T> ? 0x7C00U : 0x7F80U;

template <typename T>
__device__ inline uint32_t pack(float low, float high) {
    if constexpr (kIsHalf<T>) {
        const __half2 two = __floats2half2_rn(low, high);
        return reinterpret_cast<const uint32_t&>(two);
    } else {
        const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
        return reinterpret_cast<const uint32_t&>(two);
    }
}

template <typename T>
__device__ inline float2 unpack(uint32_t pair) {
    if constexpr (kIsHalf<T>)
        return __half22float2(reinterpret_cast<const __half2&>(pair));
    else
        return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
}

template <typename T>
__device__ inline T rounded(float value) {
    if constexpr (kIsHalf<T>)
        return __float2half_rn(value);
    else
        return __float2bfloat16_rn(value);
}

}  // namespace msa::cuda
