// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace msa::cuda {

/// Reads zeros, so that the caches hold them and nothing that would have to be written back.
cudaError_t fill_caches(const void* zeros, int64_t bytes, cudaStream_t);

}  // namespace msa::cuda
