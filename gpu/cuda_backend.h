// SPDX-License-Identifier: MIT
// The CUDA backend: the operations of core/backend.h on one NVIDIA GPU of compute capability 8.0 or
// later. Operands are float, bf16 or f16. index_scores and index_select also take e4m3 (a scale of
// the whole tensor goes into index_scale) and int8 (with OperandScales), sparse_attention e4m3
// (with OperandScales). Sums are float, of int8 int32; outputs are float or like the operands, bf16
// for e4m3.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "core/registry.h"

namespace msa {

/// Device, stream and allocator of a cuda backend. A library with its own stream and allocator
/// (PyTorch) passes them in; the backend's calls then run in order with that library's.
struct CudaOptions {
    int device = 0;   // ordinal
    int threads = 0;  // Backend::host_threads(); 0: threads_or_all

    /// A cudaStream_t of that device, which must outlive the backend and all memory that it
    /// allocated; null: the backend creates a stream. The legacy default stream is
    /// cudaStreamLegacy. While the stream is captured, calls go into that graph. Make the same
    /// calls once before, so that layouts exist (but see keeps_apart) and kernels are loaded. The
    /// backend and the views must outlive the graph, and nothing else may run on the backend while
    /// the graph runs.
    void* stream = nullptr;

    /// Allocates device memory for use in stream order, aligned to 256 bytes; returns null if there
    /// is not enough. `free` gets the same bytes and stream, possibly after the backend is gone,
    /// and must not throw. Give both or neither; without them CUDA's stream-ordered pool is used.
    std::function<void*(int64_t bytes, void* stream)> allocate = {};
    std::function<void(void* memory, int64_t bytes, void* stream)> free = {};

    /// Buffers that outlive a call (layouts, a block of scratch memory) come from CUDA's own pool,
    /// not from `allocate`, because a graph's pool must not keep foreign memory. Then the first
    /// call on a layout may be captured, too.
    bool keeps_apart = false;
};

/// The backend of that name, see register_cuda_backend(). Throws InputError if the options
/// contradict each other or name no device or the name is of no such backend, UnsupportedError if
/// it cannot start.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&, const std::string& name = "cuda");

/// Registers "cuda", "cuda-unordered", "cuda-sm80" and "cuda-sm86" (gpu/README.md) with
/// make_backend and list_backends. If they are not usable, the reason is given: no CUDA, driver or
/// device, or one that is too old. May be called repeatedly.
void register_cuda_backend();

/// Seconds that `work`, calls of a cuda backend, takes by the device's clock, with caches full of
/// other, clean data. Nothing for another backend.
std::optional<double> cuda_cold_seconds(Backend&, const std::function<void()>& work);

}  // namespace msa
