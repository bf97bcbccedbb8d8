// SPDX-License-Identifier: MIT
#include "gpu/runtime.h"

#include <algorithm>

#include "core/error.h"
#include "core/problem.h"

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

void require_host_copies(const Stream& stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream.get(), &status), "asking the stream");
    if (status != cudaStreamCaptureStatusNone)
        throw UnsupportedError(
            "cuda: these calls cannot be captured: they copy from the host as they go, as many "
            "plain kernels, block_mass and calls on more than one problem do");
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
