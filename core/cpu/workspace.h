// SPDX-License-Identifier: MIT
// Scratch memory of a parallel loop, made before it starts so that nothing throws inside.
#pragma once

#include <omp.h>

#include "core/problem.h"
#include "core/tensor.h"

namespace msa::cpu {

class Workspace {
public:
    Workspace(int threads, int64_t floats_per_thread)
        : memory_({threads, whole_lines(floats_per_thread)}) {}

    /// Of the calling thread of the loop's team; 64-byte aligned.
    float* mine() { return memory_.view()[omp_get_thread_num()].data(); }

private:
    /// Whole cache lines, so that threads share none.
    static int64_t whole_lines(int64_t floats) { return ceil_div(floats, 16) * 16; }

    Tensor<float, 2> memory_;
};

}  // namespace msa::cpu
