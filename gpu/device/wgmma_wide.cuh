// SPDX-License-Identifier: MIT
// wgmma with N = 256, like those of gpu/device/wgmma.cuh: for outputs of 256 channels.
#pragma once

#include <cstdint>

namespace msa::cuda::sm90 {

// Operands 0 to 127 of the instruction: the sums.
#define MSA_EIGHT(d, n)                                                                         \
    "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3]), "+f"(d[n + 4]), "+f"(d[n + 5]), \
        "+f"(d[n + 6]), "+f"(d[n + 7])
#define MSA_THIRTY_TWO(d, n) \
    MSA_EIGHT(d, n), MSA_EIGHT(d, n + 8), MSA_EIGHT(d, n + 16), MSA_EIGHT(d, n + 24)
/// A in registers, bf16 or f16.
#define MSA_MULTIPLY_WIDE(name, type)                                                              \
    template <bool Transposed = false>                                                             \
    __device__ inline void name(float(&d)[128], const uint32_t* a, uint64_t b, bool add) {         \
        asm volatile(                                                                              \
            "{\n"                                                                                  \
            ".reg .pred p;\n"                                                                      \
            "setp.ne.b32 p, %133, 0;\n"                                                            \
            "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                           \
            " {"                                                                                   \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "               \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "     \
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "     \
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "     \
            "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "     \
            "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "     \
            "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "     \
            "%110, %111, "                                                                         \
            "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
            "%126, %127"                                                                           \
            "}, {%128, %129, %130, %131}, %132, p, 1, 1, %134;\n"                                  \
            "}\n"                                                                                  \
            : MSA_THIRTY_TWO(d, 0), MSA_THIRTY_TWO(d, 32), MSA_THIRTY_TWO(d, 64),                  \
              MSA_THIRTY_TWO(d, 96)                                                                \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)),                   \
              "n"(int(Transposed)));                                                               \
    }

MSA_MULTIPLY_WIDE(multiply_bf16, "bf16")
MSA_MULTIPLY_WIDE(multiply_f16, "f16")
#undef MSA_MULTIPLY_WIDE
#undef MSA_THIRTY_TWO
#undef MSA_EIGHT

}  // namespace msa::cuda::sm90
