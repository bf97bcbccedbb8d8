// SPDX-License-Identifier: MIT
// Ends a program on a processor that cannot run it, with what is missing, where an illegal
// instruction would end it. This file alone is compiled for every x86-64 processor, and its
// constructor runs before those of the program's static objects.
#include <sys/platform/x86.h>

#include <cstdio>
#include <cstdlib>

namespace {

[[gnu::constructor(101)]] void require_processor() {
    const struct {
        const char* name;
        bool present;
    } needed[] = {{"avx2", CPU_FEATURE_ACTIVE(AVX2)},
                  {"bmi2", CPU_FEATURE_ACTIVE(BMI2)},
                  {"f16c", CPU_FEATURE_ACTIVE(F16C)},
                  {"fma", CPU_FEATURE_ACTIVE(FMA)}};
    const char* before =
        MSA_PROGRAM_NAME ": this program needs a processor with AVX2 (x86-64-v3); this one lacks ";
    bool suits = true;
    for (const auto& feature : needed) {
        if (feature.present) continue;
        std::fprintf(stderr, "%s%s", before, feature.name);
        before = ", ";
        suits = false;
    }
    if (suits) return;
    std::fputs("\n", stderr);
    std::_Exit(2);  // as for every request that cannot be answered
}

}  // namespace
