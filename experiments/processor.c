/* SPDX-License-Identifier: MIT */
/* Ends a program on a processor that cannot run it, with what is missing, where an illegal
 * instruction would end it. This file alone is compiled for every x86-64 processor, and its
 * constructor runs before those of the program's static objects. It is C as the header of glibc is.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/platform/x86.h>

__attribute__((constructor(101))) static void require_processor(void) {
    const struct {
        const char* name;
        int present;
    } needed[] = {{"avx2", CPU_FEATURE_ACTIVE(AVX2)},
                  {"bmi2", CPU_FEATURE_ACTIVE(BMI2)},
                  {"f16c", CPU_FEATURE_ACTIVE(F16C)},
                  {"fma", CPU_FEATURE_ACTIVE(FMA)}};
    const char* before =
        MSA_PROGRAM_NAME ": this program needs a processor with AVX2 (x86-64-v3); this one lacks ";
    int missing = 0;
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; ++i) {
        if (needed[i].present) continue;
        fprintf(stderr, "%s%s", before, needed[i].name);
        before = ", ";
        ++missing;
    }
    if (missing == 0) return;
    fputs("\n", stderr);
    _Exit(2); /* as for every request that cannot be answered */
}
