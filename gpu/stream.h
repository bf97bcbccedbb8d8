// SPDX-License-Identifier: MIT
// Error checks, the stream of a backend, and stream-ordered device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "gpu/cuda_backend.h"

namespace msa::cuda {

/// Throws SystemError naming `what` unless `status` is success. The error is cleared.
void check(cudaError_t status, std::string_view what);
/// After a kernel launch: throws SystemError naming the kernel.
inline void check_launch(std::string_view kernel) { check(cudaGetLastError(), kernel); }

/// The stream of a backend, its own or a borrowed one, with its allocator. Allocated memory keeps
/// it alive.
class Stream {
public:
    explicit Stream(const CudaOptions&);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    cudaStream_t get() const { return stream_; }
    /// Whether only this backend queues work on it.
    bool is_own() const { return own_; }
    /// Whether the stream is being captured into a graph.
    bool is_capturing() const;

    // Memory in stream order; null if there is not enough.
    void* take(int64_t bytes) const;
    void give_back(void* memory, int64_t bytes) const noexcept;

    /// CudaOptions::keeps_apart.
    bool keeps_apart() const { return options_.keeps_apart; }
    // The same from CUDA's own pool. While the stream is captured, memory is allocated immediately,
    // and freed memory is released when the capture has ended.
    void* take_apart(int64_t bytes);
    void give_back_apart(void* memory) noexcept;

private:
    cudaStream_t stream_ = nullptr;
    bool own_ = false;
    CudaOptions options_;
    std::vector<void*> to_free_;  // freed during a capture
};

/// A CUDA event: a point in a stream's work, with the time at which the device passes it.
class Event {
public:
    Event() { check(cudaEventCreate(&event_), "making an event"); }
    ~Event() { cudaEventDestroy(event_); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    void record(const Stream& stream) const {
        check(cudaEventRecord(event_, stream.get()), "recording an event");
    }
    /// Both events must have passed.
    double seconds_since(const Event& begin) const {
        float milliseconds = 0;
        check(cudaEventElapsedTime(&milliseconds, begin.event_, event_), "asking for the time");
        return 1e-3 * static_cast<double>(milliseconds);
    }

private:
    cudaEvent_t event_ = nullptr;
};

/// Uninitialised device memory, allocated and freed in stream order. Never null. Throws MemoryError
/// with the requested, free and total bytes if there is not enough.
std::shared_ptr<void> allocate(const std::shared_ptr<Stream>& stream, int64_t bytes);

/// The same for memory that outlives a call: see CudaOptions::keeps_apart.
std::shared_ptr<void> allocate_to_keep(const std::shared_ptr<Stream>& stream, int64_t bytes);

/// Throws UnsupportedError while the stream is captured, because a graph would keep the host
/// address.
void require_host_copies(const Stream&);

/// A copy of host data in device memory.
template <typename T>
Tensor<T, 1> upload(const std::shared_ptr<Stream>& stream, const std::vector<T>& host) {
    require_host_copies(*stream);
    const auto count = static_cast<int64_t>(host.size());
    Tensor<T, 1> here({count}, allocate(stream, count * int64_t{sizeof(T)}), Space::device);
    check(cudaMemcpyAsync(here.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice,
                          stream->get()),
          "copying to the device");
    return here;
}

/// Copies from the host to memory of allocate_to_keep. Allowed while the stream is captured: the
/// copy is then made immediately, not by the graph.
void copy_to_keep(const Stream&, void* to, const void* host, size_t bytes);

/// A copy of host data in memory that outlives a call.
template <typename T>
Tensor<T, 1> upload_to_keep(const std::shared_ptr<Stream>& stream, const std::vector<T>& host) {
    if (!stream->keeps_apart()) return upload(stream, host);
    const auto count = static_cast<int64_t>(host.size());
    Tensor<T, 1> here({count}, allocate_to_keep(stream, count * int64_t{sizeof(T)}), Space::device);
    copy_to_keep(*stream, here.data(), host.data(), host.size() * sizeof(T));
    return here;
}

}  // namespace msa::cuda
