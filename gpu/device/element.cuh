// SPDX-License-Identifier: MIT
// Element types of operands in memory: float, f16 or bf16; in the Index Branch and in
// sparse_attention also e4m3; for index scores also int8. Arithmetic is in float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "core/error.h"
#include "core/tensor.h"

namespace msa::cuda {

__device__ inline float load(const float* from) { return *from; }
__device__ inline float load(const __nv_bfloat16* from) { return __bfloat162float(*from); }
__device__ inline float load(const __half* from) { return __half2float(*from); }
__device__ inline float load(const __nv_fp8_e4m3* from) { return static_cast<float>(*from); }
__device__ inline float load(const int8_t* from) { return static_cast<float>(*from); }

/// An operand, f32, f16 or bf16, whose element is known at run time.
struct Operand {
    const void* data;
    Element element;

    __device__ float at(int64_t i) const {
        if (element == Element::bf16) return load(static_cast<const __nv_bfloat16*>(data) + i);
        if (element == Element::f16) return load(static_cast<const __half*>(data) + i);
        return static_cast<const float*>(data)[i];
    }
};

/// An output likewise.
struct Output {
    void* data;
    Element element;

    __device__ float load(int64_t i) const { return Operand{data, element}.at(i); }
    __device__ void store(int64_t i, float value) const {
        if (element == Element::bf16)
            static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
        else if (element == Element::f16)
            static_cast<__half*>(data)[i] = __float2half_rn(value);
        else
            static_cast<float*>(data)[i] = value;
    }
};

template <int Rank>
Operand operand(const In<Rank>& in) {
    return {in.data(), in.element()};
}
template <int Rank>
Output output(const Out<Rank>& out) {
    return {out.data(), out.element()};
}

/// Calls body.operator()<T>() with the C++ type of f32, f16 or bf16.
template <typename Body>
void by_element(Element element, Body body) {
    MSA_CHECK(element == Element::f32 || element == Element::f16 || element == Element::bf16);
    if (element == Element::bf16)
        body.template operator()<__nv_bfloat16>();
    else if (element == Element::f16)
        body.template operator()<__half>();
    else
        body.template operator()<float>();
}

/// The same for f32, f16, bf16 or e4m3.
template <typename Body>
void by_index_element(Element element, Body body) {
    if (element == Element::e4m3)
        body.template operator()<__nv_fp8_e4m3>();
    else
        by_element(element, body);
}

/// The same for f32, f16, bf16, e4m3 or int8.
template <typename Body>
void by_score_element(Element element, Body body) {
    if (element == Element::int8)
        body.template operator()<int8_t>();
    else
        by_index_element(element, body);
}

}  // namespace msa::cuda
