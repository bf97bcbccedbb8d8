// SPDX-License-Identifier: MIT
// The arguments of every launcher beside the operands.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/problem.h"
#include "core/tensor.h"
#include "gpu/stream.h"
#include "gpu/write_set.h"

namespace msa::cuda {

/// Properties of a backend's device, queried once.
struct Device {
    int ordinal = 0;
    int capability = 0;      // compute capability, 10 major + minor
    int sms = 0;             // streaming multiprocessors
    int shared_bytes = 0;    // largest of a thread block
    bool as_ampere = false;  // backends cuda-sm80 and cuda-sm86
    int compiled_for = 0;    // the capability that the kernels it runs were compiled for

    /// Whether to use the kernels with Hopper's instructions; otherwise those in mma.sync.
    bool is_hopper() const { return capability == 90 && !as_ampere; }
    /// Whether kernels for any GPU may be launched early (gpu/device/early.cuh): their code for it
    /// waits.
    bool begins_early() const { return is_hopper() && compiled_for >= 90; }
};

/// Scratch memory for calls that run one after the other on a stream. One block is kept, so
/// consecutive small calls allocate nothing; memory beyond it is allocated for the call.
class Scratch {
public:
    explicit Scratch(std::shared_ptr<Stream>);

    /// Frees everything taken so far for reuse.
    void begin_call() { used_ = 0; }
    /// Device memory, not initialised, for the current call.
    std::shared_ptr<void> take(int64_t bytes);

private:
    std::shared_ptr<Stream> stream_;
    std::shared_ptr<void> kept_;
    int64_t used_ = 0;
};

class Layout;

/// Resources that captured graphs refer to. A call adds to it while its stream is captured.
using GraphResources = std::vector<std::shared_ptr<const void>>;

/// One call of an operation, passed to every launcher.
struct Call {
    const Problem& problem;
    const Device& device;
    std::shared_ptr<Stream> owner;
    Scratch* memory;
    const KeyRange* visible;    // [Nq] on the device: visible_keys(problem)
    const Layout* layout;       // of the whole problem; null for a piece
    const WriteSet& ahead;      // memory that earlier work in the stream writes
    GraphResources* resources;  // null if nothing is captured

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
    /// A copy of host data for this call, or for a graph that is being captured.
    template <typename T>
    Tensor<T, 1> upload(const std::vector<T>& host) const {
        if (resources == nullptr) return cuda::upload(owner, host);
        const auto kept = std::make_shared<Tensor<T, 1>>(upload_to_keep(owner, host));
        keep_for_graph(kept);
        return {kept->shape(), std::shared_ptr<void>(kept, kept->data()), Space::device};
    }
    /// Keeps `resource` alive for a graph that is being captured.
    void keep_for_graph(std::shared_ptr<const void> resource) const {
        if (resources != nullptr) resources->push_back(std::move(resource));
    }
};

}  // namespace msa::cuda
