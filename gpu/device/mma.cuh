// SPDX-License-Identifier: MIT
// Matrix products of one warp: sum [16, 8] += A [16, 16] B [16, 8], bf16 or f16, float sums.
// Source: PTX ISA, mma.m16n8k16 and ldmatrix. The layouts of sum and A are those of
// gpu/device/wgmma.cuh, for one warp. Of e4m3 the depth is 32 (mma.m16n8k32, from compute
// capability 8.9 on): its words have the same places, with four values in place of two.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "gpu/device/half_pair.cuh"

namespace msa::cuda {

/// Operands of type T: __nv_bfloat16, __half or __nv_fp8_e4m3.
template <typename T>
__device__ inline void multiply_16x8(float* sum, const uint32_t* a, const uint32_t* b) {
    if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {
#if __CUDA_ARCH__ >= 890
        asm volatile(
            "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, "
            "%7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
        __trap();  // not launched: kFirstOfE4m3 of gpu/plan/limits.h
#endif
    } else if constexpr (kIsHalf<T>)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, "
            "%7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// The same for T = int8_t, whose sums are integers; depth and places are those of e4m3.
template <typename T>
__device__ inline void multiply_16x8(int32_t* sum, const uint32_t* a, const uint32_t* b) {
    static_assert(std::is_same_v<T, int8_t>);
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
        "%9}, {%0, %1, %2, %3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Four 8 x 8 matrices of two-byte elements: lane l gives the address of row l % 8 of matrix l / 8
/// in shared memory, and gets two elements of row l / 4 of each.
__device__ inline void load_matrices(uint32_t (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
}
/// The same for the transposed matrices.
__device__ inline void load_transposed(uint32_t (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
}

}  // namespace msa::cuda
