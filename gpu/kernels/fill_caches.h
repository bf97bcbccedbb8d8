// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace msa::cuda {

/// Reads zeros, so the caches hold only clean lines.
cudaError_t fill_caches(const void* zeros, int64_t bytes, cudaStream_t);

}  // namespace msa::cuda
