// SPDX-License-Identifier: MIT
// What the backend and its kernels share on the host side: errors, the stream and the memory that
// is taken in its order, and what every launcher is given beside the operands.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string_view>
#include <vector>

#include "core/problem.h"
#include "core/tensor.h"
#include "gpu/cuda_backend.h"
#include "gpu/written.h"

namespace msa::cuda {

/// Throws SystemError naming `what` unless `status` is success. The error is cleared.
void check(cudaError_t status, std::string_view what);
/// After a kernel launch: throws SystemError naming the kernel.
inline void check_launch(std::string_view kernel) { check(cudaGetLastError(), kernel); }

/// The device of a backend, asked once.
struct Device {
    int ordinal = 0;
    int capability = 0;  // compute capability, 10 major + minor
    int sms = 0;         // streaming multiprocessors

    bool is_hopper() const { return capability == 90; }
};

/// The stream of a backend, its own or a borrowed one, and where its memory comes from. Memory that
/// was taken keeps it alive.
class Stream {
public:
    explicit Stream(const CudaOptions&);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    cudaStream_t get() const { return stream_; }
    /// Does this backend alone queue work on it?
    bool is_own() const { return own_; }
    /// Do calls go into a graph instead of being run?
    bool is_capturing() const;

    // Memory in stream order, null where there is not enough.
    void* take(int64_t bytes) const;
    void give_back(void* memory, int64_t bytes) const noexcept;

    /// CudaOptions::keeps_apart.
    bool keeps_apart() const { return options_.keeps_apart; }
    // Likewise, of CUDA's own pool. While the stream is captured, memory is there at once, and what
    // is given back is freed when the capture has ended.
    void* take_apart(int64_t bytes);
    void give_back_apart(void* memory) noexcept;

private:
    cudaStream_t stream_ = nullptr;
    bool own_ = false;
    CudaOptions options_;
    std::vector<void*> to_free_;  // given back during a capture
};

/// A point in a stream's work, with the time at which the device passes it.
class Event {
public:
    Event() { check(cudaEventCreate(&event_), "making an event"); }
    ~Event() { cudaEventDestroy(event_); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    void record(const Stream& stream) const {
        check(cudaEventRecord(event_, stream.get()), "recording an event");
    }
    /// Both passed.
    double seconds_since(const Event& begin) const {
        float milliseconds = 0;
        check(cudaEventElapsedTime(&milliseconds, begin.event_, event_), "asking for the time");
        return 1e-3 * static_cast<double>(milliseconds);
    }

private:
    cudaEvent_t event_ = nullptr;
};

/// Device memory in stream order, not initialised, given back in stream order. Never null. Throws
/// MemoryError with the bytes asked, free and in all when there is not enough.
std::shared_ptr<void> allocate(const std::shared_ptr<Stream>& stream, int64_t bytes);

/// The same for memory that is kept beyond a call: see CudaOptions::keeps_apart.
std::shared_ptr<void> allocate_to_keep(const std::shared_ptr<Stream>& stream, int64_t bytes);

/// Throws UnsupportedError while the stream is captured: a graph would keep the host's address.
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

/// Copies from the host to memory of allocate_to_keep. It may happen while the stream is captured;
/// the graph then finds the copy made.
void copy_to_keep(const Stream&, void* to, const void* host, size_t bytes);

/// A copy of host data in memory that is kept beyond a call.
template <typename T>
Tensor<T, 1> upload_to_keep(const std::shared_ptr<Stream>& stream, const std::vector<T>& host) {
    if (!stream->keeps_apart()) return upload(stream, host);
    const auto count = static_cast<int64_t>(host.size());
    Tensor<T, 1> here({count}, allocate_to_keep(stream, count * int64_t{sizeof(T)}), Space::device);
    copy_to_keep(*stream, here.data(), host.data(), host.size() * sizeof(T));
    return here;
}

/// Scratch memory of calls that run one after the other on a stream. A block of it is kept, so that
/// small calls in a row allocate nothing; what does not fit is taken for the call.
class Scratch {
public:
    explicit Scratch(std::shared_ptr<Stream>);

    /// All that was taken so far may be used anew.
    void begin_call() { used_ = 0; }
    /// Device memory, not initialised, for the current call.
    std::shared_ptr<void> take(int64_t bytes);

private:
    std::shared_ptr<Stream> stream_;
    std::shared_ptr<void> kept_;
    int64_t used_ = 0;
};

class Layout;

/// Whatever graphs refer to that were captured: a call adds to it while its stream is captured.
using GraphResources = std::vector<std::shared_ptr<const void>>;

/// One call of an operation: what a kernel's launcher is given beside the operands.
struct Call {
    const Problem& problem;
    const Device& device;
    std::shared_ptr<Stream> owner;
    Scratch* memory;
    const KeyRange* visible;    // [Nq] on the device: visible_keys(problem)
    const Layout* layout;       // of the whole problem; absent for a piece of it
    const Written& ahead;       // by the work before it in the stream
    GraphResources* resources;  // absent where nothing is captured

    cudaStream_t stream() const { return owner->get(); }
    /// The same call for `piece`, the queries from `first` on.
    Call with_queries(const Problem& piece, int64_t first) const {
        return {piece, device, owner, memory, visible + first, nullptr, ahead, resources};
    }
    /// Scratch memory, not initialised, for this call.
    template <typename T, int Rank>
    Tensor<T, Rank> scratch(Shape<Rank> shape) const {
        return {shape, memory->take(element_count(shape) * int64_t{sizeof(T)}), Space::device};
    }
    /// A copy of host data for this call.
    template <typename T>
    Tensor<T, 1> upload(const std::vector<T>& host) const {
        return cuda::upload(owner, host);
    }
    /// A graph that is being captured may refer to what `resource` owns.
    void keep_for_graph(std::shared_ptr<const void> resource) const {
        if (resources != nullptr) resources->push_back(std::move(resource));
    }
};

}  // namespace msa::cuda
