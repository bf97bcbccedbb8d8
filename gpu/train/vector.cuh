// SPDX-License-Identifier: MIT
// Loads and stores of neighbouring elements as floats, for elementwise kernels: Width elements per
// thread. With a Width of 8, addresses must be multiples of 16 bytes.
#pragma once

#include <cstring>

#include "gpu/device/element.cuh"

namespace msa::cuda {

inline constexpr int kThreads = 256;

inline unsigned blocks_for(int64_t threads) {
    return static_cast<unsigned>(ceil_div(threads, kThreads));
}
__device__ inline int64_t global_thread() {
    return int64_t{blockIdx.x} * kThreads + int64_t{threadIdx.x};
}

__device__ inline void put(float* to, float value) { *to = value; }
__device__ inline void put(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }

template <int Width, typename T>
__device__ void load_vector(const T* from, float (&to)[Width]) {
    if constexpr (Width == 1) {
        to[0] = load(from);
    } else {
        constexpr int kPieces = Width * static_cast<int>(sizeof(T)) / 16;
        uint4 raw[kPieces];
#pragma unroll
        for (int p = 0; p < kPieces; ++p) raw[p] = reinterpret_cast<const uint4*>(from)[p];
        T elements[Width];
        memcpy(elements, raw, sizeof(raw));
#pragma unroll
        for (int i = 0; i < Width; ++i) to[i] = load(elements + i);
    }
}

template <int Width, typename T>
__device__ void store_vector(T* to, const float (&from)[Width]) {
    if constexpr (Width == 1) {
        put(to, from[0]);
    } else {
        constexpr int kPieces = Width * static_cast<int>(sizeof(T)) / 16;
        T elements[Width];
#pragma unroll
        for (int i = 0; i < Width; ++i) put(elements + i, from[i]);
        uint4 raw[kPieces];
        memcpy(raw, elements, sizeof(raw));
#pragma unroll
        for (int p = 0; p < kPieces; ++p) reinterpret_cast<uint4*>(to)[p] = raw[p];
    }
}

/// Calls body.operator()<T>() with the C++ type of f32 or bf16, which models are trained in.
template <typename Body>
void by_train_element(Element element, Body body) {
    MSA_CHECK(element == Element::f32 || element == Element::bf16);
    if (element == Element::bf16)
        body.template operator()<__nv_bfloat16>();
    else
        body.template operator()<float>();
}

/// Calls body.operator()<8>() if `width`, of a row or a list, is a multiple of 8 and all
/// `addresses` are aligned to 16 bytes; otherwise <1>.
template <typename Body, typename... Addresses>
void by_width(int64_t width, Body body, const Addresses*... addresses) {
    const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
    if (width % 8 == 0 && (aligned(addresses) && ...))
        body.template operator()<8>();
    else
        body.template operator()<1>();
}

}  // namespace msa::cuda
