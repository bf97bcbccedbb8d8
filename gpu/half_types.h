// SPDX-License-Identifier: MIT
// The 16-bit types that the tuned kernels are compiled for, each in separate objects
// (gpu/CMakeLists.txt).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "core/error.h"
#include "core/tensor.h"

namespace msa::cuda {

inline constexpr int64_t kHalfBytes = 2;

inline bool is_half(Element element) { return element == Element::bf16 || element == Element::f16; }

/// Calls body.operator()<T>() with the C++ type of bf16 or f16.
template <typename Body>
auto by_half(Element element, Body body) {
    MSA_CHECK(is_half(element));
    return element == Element::f16 ? body.template operator()<__half>()
                                   : body.template operator()<__nv_bfloat16>();
}
/// The same for bf16, f16 or e4m3, the operand types of the forward pass.
template <typename Body>
auto by_half_or_e4m3(Element element, Body body) {
    return element == Element::e4m3 ? body.template operator()<__nv_fp8_e4m3>()
                                    : by_half(element, body);
}
/// The same for bf16, f16, e4m3 or int8, the operand types of the Index Branch.
template <typename Body>
auto by_half_or_narrow(Element element, Body body) {
    return element == Element::int8 ? body.template operator()<int8_t>()
                                    : by_half_or_e4m3(element, body);
}

}  // namespace msa::cuda
