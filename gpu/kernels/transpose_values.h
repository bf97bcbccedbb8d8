// SPDX-License-Identifier: MIT
// Transposes e4m3 values by block of keys: gpu/e4m3_layout.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/e4m3_layout.h"
#include "gpu/query_tile.h"

namespace msa::cuda {

struct TransposeValuesArgs {
    const SequenceBlock* blocks;  // of all sequences
    int64_t block_count;          // at least 1
    const void* values;           // [Nk, Hkv, dh] e4m3
    char* to;                     // [blocks, Hkv, transposed_tile_bytes()], 1024-byte aligned
};

/// Head dims 64 and 128, block sizes 64 and 128.
cudaError_t launch_transpose_values(const TransposeValuesArgs&, int head_dim, int block_size,
                                    int groups, cudaStream_t);

}  // namespace msa::cuda
