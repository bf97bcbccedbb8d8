// SPDX-License-Identifier: MIT
// Copies rows to memory where they are longer or shorter.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace msa::cuda {

struct ResizeRowsArgs {
    const uint4* from;  // [rows, from_chunks] of 16 bytes
    uint4* to;          // [rows, to_chunks]; chunks that `from` does not have become 0
    int64_t rows;
    int from_chunks, to_chunks;  // to_chunks: at most 64
    // With `marked`, whether a group of rows has a NaN in its lse.
    const float* lse;  // [rows]
    int heads;         // of a group; they divide rows
    int32_t* marked;   // [rows / heads], or null
};

cudaError_t launch_resize_rows(const ResizeRowsArgs&, cudaStream_t);

}  // namespace msa::cuda
