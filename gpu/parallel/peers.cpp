// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <string>

#include "core/error.h"
#include "gpu/cuda_parallel.h"
#include "gpu/shared_stream.h"

namespace msa::parallel {
namespace {

using cuda::check;

/// Work of other streams and GPUs waits for it.
class Mark {
public:
    Mark() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event"); }
    ~Mark() { cudaEventDestroy(event_); }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
    cudaEvent_t get() const { return event_; }
    void set(cudaStream_t stream) const {
        check(cudaEventRecord(event_, stream), "recording an event");
    }

private:
    cudaEvent_t event_ = nullptr;
};

void wait_for(cudaStream_t stream, cudaEvent_t event) {
    check(cudaStreamWaitEvent(stream, event, 0), "waiting for an event");
}

void reach(int device, int other) {
    int can = 0;
    check(cudaDeviceCanAccessPeer(&can, device, other), "asking for access to a peer");
    if (can == 0)
        throw UnsupportedError(concat("GPU ", device, " cannot reach the memory of GPU ", other));
    const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled)
        cudaGetLastError();  // it is none
    else
        check(status, "reaching a peer's memory");
}

class Peers final : public PeerCopies {
public:
    Peers(const Group& group, Backend& backend)
        : PeerCopies(group, backend), shared_(cuda::share_stream(backend)) {
        use_device();
        devices_ = of_all(shared_.device.ordinal);
        for (int other = 0; other < ranks(); ++other) {
            if (other == rank()) continue;
            require(device_of(other) != device_of(rank()), "ranks ", std::min(rank(), other),
                    " and ", std::max(rank(), other), " are both on GPU ", device_of(rank()));
            reach(device_of(rank()), device_of(other));
        }
        check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "making a stream");
        written_of_ = of_all(written_.get());
        copied_of_ = of_all(copied_.get());
    }
    Peers(const Peers&) = delete;
    Peers& operator=(const Peers&) = delete;
    ~Peers() override {
        cudaSetDevice(shared_.device.ordinal);
        cudaStreamSynchronize(copies_);
        cudaStreamSynchronize(shared_.stream->get());
        cudaStreamDestroy(copies_);
    }

    SharedMemory share(int64_t bytes) override {
        use_device();
        // Not of the pool, whose memory is its own GPU's alone.
        void* memory = nullptr;
        const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
        const cudaError_t status = cudaMalloc(&memory, size);
        if (status == cudaErrorMemoryAllocation) {
            cudaGetLastError();
            throw MemoryError(concat("cuda: not enough device memory: ", bytes, " bytes asked"));
        }
        check(status, "allocating memory");
        SharedMemory shared{{memory,
                             [device = shared_.device.ordinal](void* p) {
                                 cudaSetDevice(device);
                                 cudaFree(p);
                             }},
                            {}};
        check(cudaMemsetAsync(memory, 0, size, shared_.stream->get()), "clearing memory");
        backend().finish();
        shared.of_rank = of_all(static_cast<const void*>(memory));
        return shared;
    }
    void open() override {
        use_device();
        written_.set(shared_.stream->get());
        group().barrier();
        for (cudaEvent_t written : written_of_) wait_for(copies_, written);
    }
    void fetch(const SharedMemory& memory, int from, int64_t offset, int64_t bytes) override {
        use_device();
        const auto* const there =
            static_cast<const char*>(memory.of_rank[static_cast<size_t>(from)]) + offset;
        check(cudaMemcpyPeerAsync(static_cast<char*>(memory.own.get()) + offset, device_of(rank()),
                                  there, device_of(from), static_cast<size_t>(bytes), copies_),
              "copying from a peer");
    }
    void await() override {
        use_device();
        arrived_.set(copies_);
        wait_for(shared_.stream->get(), arrived_.get());
    }
    void close() override {
        use_device();
        copied_.set(copies_);
        group().barrier();
        for (cudaEvent_t copied : copied_of_) wait_for(shared_.stream->get(), copied);
    }

private:
    void use_device() const { check(cudaSetDevice(shared_.device.ordinal), "choosing the device"); }
    int device_of(int rank) const { return devices_[static_cast<size_t>(rank)]; }
    template <typename T>
    std::vector<T> of_all(const T& mine) const {
        std::vector<T> all(static_cast<size_t>(ranks()));
        group().all_gather(std::as_bytes(std::span(&mine, 1)),
                           std::as_writable_bytes(std::span(all)));
        return all;
    }

    cuda::SharedStream shared_;
    std::vector<int> devices_;
    cudaStream_t copies_ = nullptr;
    Mark written_, arrived_, copied_;
    std::vector<cudaEvent_t> written_of_, copied_of_;  // of all ranks
};

}  // namespace

Support cuda_ranks(std::span<const int64_t> devices) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        cudaGetLastError();
        count = 0;
    }
    for (int64_t device : devices) {
        if (device < 0 || device >= count)
            return Support::no(concat("there is no GPU ", device, ", of ", count));
        for (int64_t other : devices) {
            int can = 0;
            if (other == device || other < 0 || other >= count) continue;
            if (cudaDeviceCanAccessPeer(&can, static_cast<int>(device), static_cast<int>(other)) !=
                    cudaSuccess ||
                can == 0)
                return Support::no(
                    concat("GPU ", device, " cannot reach the memory of GPU ", other));
        }
    }
    return {};
}

std::unique_ptr<PeerCopies> make_cuda_peer_copies(const Group& group, Backend& backend) {
    return std::make_unique<Peers>(group, backend);
}

}  // namespace msa::parallel
