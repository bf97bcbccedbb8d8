// SPDX-License-Identifier: MIT
#include "gpu/runtime.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/problem.h"

namespace msa::cuda {

void check(cudaError_t status, std::string_view what) {
    if (status == cudaSuccess) return;
    cudaGetLastError();  // an error that is not sticky must not surface again later
    throw SystemError(text("cuda: ", what, ": ", cudaGetErrorString(status), " (",
                           cudaGetErrorName(status), ")"));
}

Stream::Stream(const CudaOptions& options)
    : stream_(static_cast<cudaStream_t>(options.stream)),
      own_(options.stream == nullptr),
      options_(options) {
    if (own_) check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    if (options_.allocate) return;
    // Memory given back stays with the pool, so that scratch memory costs nothing from the second
    // call on.
    cudaMemPool_t pool = nullptr;
    check(cudaDeviceGetDefaultMemPool(&pool, options.device), "asking for the memory pool");
    uint64_t keep = std::numeric_limits<uint64_t>::max();
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
          "setting up the memory pool");
}

Stream::~Stream() {
    if (own_) cudaStreamDestroy(stream_);
}

bool Stream::is_capturing() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream_, &status), "asking the stream");
    return status != cudaStreamCaptureStatusNone;
}

void* Stream::take(int64_t bytes) const {
    if (options_.allocate) return options_.allocate(bytes, stream_);
    void* memory = nullptr;
    const cudaError_t status = cudaMallocAsync(&memory, static_cast<size_t>(bytes), stream_);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return nullptr;
    }
    check(status, "allocating memory");
    return memory;
}

void Stream::give_back(void* memory, int64_t bytes) const noexcept {
    if (options_.free)
        options_.free(memory, bytes, stream_);
    else
        cudaFreeAsync(memory, stream_);
}

std::shared_ptr<void> allocate(const std::shared_ptr<Stream>& stream, int64_t bytes) {
    // At least one byte, so that an empty tensor is present (non-null) all the same.
    const int64_t asked = std::max<int64_t>(1, bytes);
    void* const memory = stream->take(asked);
    if (memory == nullptr) {
        size_t free = 0, total = 0;
        check(cudaMemGetInfo(&free, &total), "asking for the free memory");
        throw MemoryError(text("cuda: not enough device memory: ", bytes, " bytes asked, ", free,
                               " of ", total, " free"));
    }
    return {memory, [stream, asked](void* p) { stream->give_back(p, asked); }};
}

void require_host_copies(const Stream& stream) {
    if (stream.is_capturing())
        throw UnsupportedError(
            "cuda: these calls cannot be captured: they copy from or to the host as they go, as "
            "many plain kernels, block_mass and the first call on a layout do");
}

namespace {
constexpr int64_t kKeptScratch = int64_t{1} << 24;
}

Scratch::Scratch(std::shared_ptr<Stream> stream)
    : stream_(std::move(stream)), kept_(allocate(stream_, kKeptScratch)) {}

std::shared_ptr<void> Scratch::take(int64_t bytes) {
    constexpr int64_t kAlignment = 256;
    if (bytes > kKeptScratch - used_) return allocate(stream_, bytes);
    std::shared_ptr<void> taken(kept_, static_cast<char*>(kept_.get()) + used_);
    used_ = ceil_div(used_ + bytes, kAlignment) * kAlignment;
    return taken;
}

}  // namespace msa::cuda
