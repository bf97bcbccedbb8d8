// SPDX-License-Identifier: MIT
// select_blocks (eq:msa-topk) for k <= 32; reads each score once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/problem.h"
#include "gpu/kernels/device_rule.h"

namespace msa::cuda {

struct SelectBlocksArgs {
    const float* scores;      // [Nq, Hkv, B]
    const KeyRange* visible;  // [Nq]
    int64_t rows;             // Nq * Hkv
    int groups;               // Hkv
    int blocks;               // B
    int block_size;           // Bk
    DeviceRule rule;
    int32_t* ids;  // [Nq, Hkv, k]
};

void launch_select_blocks_warp(const SelectBlocksArgs&, cudaStream_t);

}  // namespace msa::cuda
