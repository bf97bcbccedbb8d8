// SPDX-License-Identifier: MIT
#include "gpu/runtime.h"

#include <algorithm>

#include "core/error.h"

namespace msa::cuda {

void check(cudaError_t status, std::string_view what) {
    if (status == cudaSuccess) return;
    cudaGetLastError();  // an error that is not sticky must not surface again later
    throw SystemError(text("cuda: ", what, ": ", cudaGetErrorString(status), " (",
                           cudaGetErrorName(status), ")"));
}

Stream::Stream() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
}

Stream::~Stream() { cudaStreamDestroy(stream_); }

std::shared_ptr<void> allocate(const std::shared_ptr<Stream>& stream, int64_t bytes) {
    void* memory = nullptr;
    // At least one byte, so that an empty tensor is present (non-null) all the same.
    const auto asked = static_cast<size_t>(std::max<int64_t>(1, bytes));
    const cudaError_t status = cudaMallocAsync(&memory, asked, stream->get());
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        size_t free = 0, total = 0;
        check(cudaMemGetInfo(&free, &total), "asking for the free memory");
        throw MemoryError(text("cuda: not enough device memory: ", bytes, " bytes asked, ", free,
                               " of ", total, " free"));
    }
    check(status, "allocating memory");
    return {memory, [stream](void* p) { cudaFreeAsync(p, stream->get()); }};
}

}  // namespace msa::cuda
