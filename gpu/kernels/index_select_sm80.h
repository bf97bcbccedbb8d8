// SPDX-License-Identifier: MIT
// Fused index_select with the instructions of compute capability 8.0.
#pragma once

#include "gpu/kernels/index_select_sm90.h"

namespace msa::cuda {

// Shared memory of a thread block: that of compute capability 8.6, 8.9 and 12.0, and that needed by
// the large tiles, which 8.0, 8.7, 9.0 and 10.0 have.
constexpr int kLeastShared = 99 << 10, kLargeShared = 163 << 10;
/// Rows of a tile with many queries: as many as shared memory holds lists for. With rows of 512
/// bytes registers suffice for half of them.
constexpr int index_rows_sm80(bool large, int64_t top_k, int64_t row_bytes) {
    return (large || top_k <= 16 ? 256 : 128) / (row_bytes > 256 ? 2 : 1);
}

/// Operands of type T: __nv_bfloat16, __half, int8_t or, in code for kFirstOfE4m3, __nv_fp8_e4m3.
/// Tiles have index_rows_sm80() rows or, in a decode, kIndexDecodeRows. `large`: the device has
/// kLargeShared.
template <typename T>
cudaError_t launch_index_select_sm80(const IndexSelectArgs&, bool large, cudaStream_t);

}  // namespace msa::cuda
