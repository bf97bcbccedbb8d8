// SPDX-License-Identifier: MIT
// Operands are float or bfloat16 in memory, those of the Index Branch also e4m3, and float in
// arithmetic.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "core/error.h"
#include "core/tensor.h"

namespace msa::cuda {

__device__ inline float load(const float* from) { return *from; }
__device__ inline float load(const __nv_bfloat16* from) { return __bfloat162float(*from); }
__device__ inline float load(const __nv_fp8_e4m3* from) { return static_cast<float>(*from); }

/// An output whose element is known at run time.
struct Output {
    void* data;
    bool is_bf16;

    __device__ float load(int64_t i) const {
        return is_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i])
                       : static_cast<const float*>(data)[i];
    }
    __device__ void store(int64_t i, float value) const {
        if (is_bf16)
            static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
        else
            static_cast<float*>(data)[i] = value;
    }
};

template <int Rank>
Output output(const Out<Rank>& out) {
    return {out.data(), out.element() == Element::bf16};
}

/// Calls body.operator()<T>() with the C++ type of f32 or bf16.
template <typename Body>
void by_element(Element element, Body body) {
    MSA_CHECK(element == Element::f32 || element == Element::bf16);
    if (element == Element::bf16)
        body.template operator()<__nv_bfloat16>();
    else
        body.template operator()<float>();
}

/// The same of f32, bf16 or e4m3.
template <typename Body>
void by_index_element(Element element, Body body) {
    if (element == Element::e4m3)
        body.template operator()<__nv_fp8_e4m3>();
    else
        by_element(element, body);
}

}  // namespace msa::cuda
