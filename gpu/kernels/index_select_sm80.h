// SPDX-License-Identifier: MIT
// index_select fused, in the instructions of compute capability 8.0.
#pragma once

#include "gpu/kernels/index_select_sm90.h"

namespace msa::cuda {

/// Shared memory of a thread block that the tiles for much of it need: 8.0, 8.7, 9.0 and 10.0.
constexpr int kLargeShared = 163 << 10;
/// Rows of a tile where there are many queries: as many as shared memory has lists for.
constexpr int index_rows_sm80(bool large, int64_t top_k) {
    return large || top_k <= 16 ? 256 : 128;
}

/// Operands of type T: __nv_bfloat16 or __half. Tiles of index_rows_sm80() rows or, where the call
/// is a decode, kIndexDecodeRows. `large`: does the device have kLargeShared?
template <typename T>
cudaError_t launch_index_select_sm80(const IndexSelectArgs&, bool large, cudaStream_t);

}  // namespace msa::cuda
