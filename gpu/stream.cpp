// SPDX-License-Identifier: MIT
#include "gpu/stream.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"

namespace msa::cuda {
namespace {

/// Lets this thread do what a capture forbids, on streams that are not captured.
class DespiteCapture {
public:
    DespiteCapture() { swap(); }
    ~DespiteCapture() { swap(); }
    DespiteCapture(const DespiteCapture&) = delete;
    DespiteCapture& operator=(const DespiteCapture&) = delete;

private:
    void swap() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

void check(cudaError_t status, std::string_view what) {
    if (status == cudaSuccess) return;
    cudaGetLastError();  // an error that is not sticky must not surface again later
    throw SystemError(concat("cuda: ", what, ": ", cudaGetErrorString(status), " (",
                             cudaGetErrorName(status), ")"));
}

Stream::Stream(const CudaOptions& options)
    : stream_(static_cast<cudaStream_t>(options.stream)),
      own_(options.stream == nullptr),
      options_(options) {
    const DespiteCapture despite;
    if (own_) check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    if (options_.allocate && !options_.keeps_apart) return;
    // Memory given back stays with the pool, so that scratch memory costs nothing from the second
    // call on.
    cudaMemPool_t pool = nullptr;
    check(cudaDeviceGetDefaultMemPool(&pool, options.device), "asking for the memory pool");
    uint64_t keep = std::numeric_limits<uint64_t>::max();
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
          "setting up the memory pool");
}

Stream::~Stream() {
    for (void* memory : to_free_) cudaFreeAsync(memory, stream_);
    if (own_) cudaStreamDestroy(stream_);
}

bool Stream::is_capturing() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream_, &status), "asking the stream");
    return status != cudaStreamCaptureStatusNone;
}

namespace {

/// Runs `work` on a stream that nobody captures, and waits for it alone.
template <typename Work>
cudaError_t run_aside(Work work) {
    const DespiteCapture despite;
    cudaStream_t aside = nullptr;
    cudaError_t status = cudaStreamCreateWithFlags(&aside, cudaStreamNonBlocking);
    if (status != cudaSuccess) return status;
    status = work(aside);
    if (status == cudaSuccess) status = cudaStreamSynchronize(aside);
    cudaStreamDestroy(aside);
    return status;
}

void* memory_or_null(cudaError_t status, void* memory) {
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return nullptr;
    }
    check(status, "allocating memory");
    return memory;
}

/// At least one byte, so that an empty tensor is present (non-null) all the same.
int64_t asked_of(int64_t bytes) { return std::max<int64_t>(1, bytes); }

void require_memory(const void* memory, int64_t bytes) {
    if (memory != nullptr) return;
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "asking for the free memory");
    throw MemoryError(concat("cuda: not enough device memory: ", bytes, " bytes asked, ", free,
                             " of ", total, " free"));
}

}  // namespace

void* Stream::take(int64_t bytes) const {
    if (options_.allocate) return options_.allocate(bytes, stream_);
    void* memory = nullptr;
    const cudaError_t status = cudaMallocAsync(&memory, static_cast<size_t>(bytes), stream_);
    return memory_or_null(status, memory);
}

void Stream::give_back(void* memory, int64_t bytes) const noexcept {
    if (options_.free)
        options_.free(memory, bytes, stream_);
    else
        cudaFreeAsync(memory, stream_);
}

void* Stream::take_apart(int64_t bytes) {
    void* memory = nullptr;
    const auto take = [&](cudaStream_t in) {
        return cudaMallocAsync(&memory, static_cast<size_t>(bytes), in);
    };
    cudaError_t status = cudaSuccess;
    if (is_capturing()) {
        status = run_aside(take);
    } else {
        for (void* old : std::exchange(to_free_, {})) cudaFreeAsync(old, stream_);
        status = take(stream_);
    }
    return memory_or_null(status, memory);
}

void Stream::give_back_apart(void* memory) noexcept {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream_, &status);
    if (status == cudaStreamCaptureStatusNone)
        cudaFreeAsync(memory, stream_);
    else
        to_free_.push_back(memory);
}

std::shared_ptr<void> allocate(const std::shared_ptr<Stream>& stream, int64_t bytes) {
    const int64_t asked = asked_of(bytes);
    void* const memory = stream->take(asked);
    require_memory(memory, bytes);
    return {memory, [stream, asked](void* p) { stream->give_back(p, asked); }};
}

std::shared_ptr<void> allocate_to_keep(const std::shared_ptr<Stream>& stream, int64_t bytes) {
    if (!stream->keeps_apart()) return allocate(stream, bytes);
    void* const memory = stream->take_apart(asked_of(bytes));
    require_memory(memory, bytes);
    return {memory, [stream](void* p) { stream->give_back_apart(p); }};
}

void copy_to_keep(const Stream& stream, void* to, const void* host, size_t bytes) {
    const auto copy = [&](cudaStream_t in) {
        return cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, in);
    };
    check(stream.is_capturing() ? run_aside(copy) : copy(stream.get()), "copying to the device");
}

void require_host_copies(const Stream& stream) {
    if (stream.is_capturing())
        throw UnsupportedError(
            "cuda: these calls cannot be captured: they copy from or to the host as they go, as "
            "many plain kernels, block_mass and the first call on a layout do");
}

}  // namespace msa::cuda
