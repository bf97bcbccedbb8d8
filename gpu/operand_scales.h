// SPDX-License-Identifier: MIT
// Scales of 8-bit operands (core/number/operand_scales.h) for kernels.
#pragma once

#include <cuda_runtime.h>

#include "core/number/operand_scales.h"
#include "gpu/query_tile.h"

namespace msa::cuda {

/// Scales of one operand: one per position, or one for all.
struct DeviceScales {
    const float* data = nullptr;  // null: 1
    int64_t step = 0;             // 0 or 1

    DeviceScales() = default;
    explicit DeviceScales(View<const float, 2> scales)
        : data(scales.data()), step(scales.size() == 1 ? 0 : 1) {}
    __device__ float at(int64_t i) const { return data == nullptr ? 1.0F : data[i * step]; }
};

/// Scales of the operands of attention or of the Index Branch. `blocks` are those of all sequences,
/// in order.
struct AttentionScales {
    DeviceScales q, k, v;
    const SequenceBlock* blocks = nullptr;
    int64_t block_count = 0;

    /// The number of the block that holds the packed key `token`.
    __device__ int64_t block_of(int64_t token) const {
        int64_t first = 0, last = block_count - 1;
        while (first < last) {
            const int64_t middle = (first + last + 1) / 2;
            if (blocks[middle].key <= token)
                first = middle;
            else
                last = middle - 1;
        }
        return first;
    }
};

}  // namespace msa::cuda
