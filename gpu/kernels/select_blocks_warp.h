// SPDX-License-Identifier: MIT
// select_blocks (eq:msa-topk) for k <= 32; reads each score once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/problem.h"
#include "gpu/kernels/device_rule.h"

namespace msa::cuda {

struct SelectBlocksArgs {
    const float* scores;      // [Nq, Hkv, B], rows `pitch` apart
    int64_t pitch;            // at least B
    const KeyRange* visible;  // [Nq]
    const int32_t* seen;      // [Nq] keys that each query sees; null: those that are visible
    int64_t rows;             // Nq * Hkv
    int groups;               // Hkv
    int block_size;           // Bk
    DeviceRule rule;
    int32_t* ids;  // [Nq, Hkv, k]
};

/// `early`: the kernel may begin before the previous one in the stream has ended, which is of the
/// same call and waits for those before it.
cudaError_t launch_select_blocks_warp(const SelectBlocksArgs&, bool early, cudaStream_t);

}  // namespace msa::cuda
