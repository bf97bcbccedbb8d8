// SPDX-License-Identifier: MIT
// The CUDA backend: the operations of core/backend.h on one NVIDIA GPU of compute capability 8.0 or
// later. Operands float or bfloat16, of index_scores and index_select also e4m3 (a scale of the
// whole tensor goes into index_scale), of sparse_attention too (with scales of its own); sums in
// float, outputs float or like the operands, bfloat16 of e4m3.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "core/registry.h"

namespace msa {

/// Where a cuda backend works. A library that has a stream and an allocator of its own (PyTorch)
/// hands them in, and the backend's calls take their turn among that library's.
struct CudaOptions {
    int device = 0;   // ordinal
    int threads = 0;  // Backend::host_threads(); 0: threads_or_all

    /// A cudaStream_t of that device, which outlives the backend and all memory that it gave out;
    /// null: a stream that the backend makes. The legacy default stream is cudaStreamLegacy. While
    /// somebody captures the stream, calls go into that graph: call once before, so that layouts
    /// are there (but see keeps_apart) and kernels loaded. The backend and the views must outlive
    /// the graph, and nothing else may run on the backend while the graph runs.
    void* stream = nullptr;

    /// Device memory for use in the stream's order, at addresses that are multiples of 256; null
    /// where there is not enough. `free` is called with the same bytes and stream, possibly after
    /// the backend is gone, and must not throw. Both, or neither: then CUDA's stream-ordered pool.
    std::function<void*(int64_t bytes, void* stream)> allocate = {};
    std::function<void(void* memory, int64_t bytes, void* stream)> free = {};

    /// Buffers that are kept beyond a call (layouts, a block of scratch memory) never use
    /// `allocate` but CUDA's own pool, because a graph's pool must not keep foreign memory. Then
    /// the first call on a layout may be captured, too.
    bool keeps_apart = false;
};

/// Throws InputError where the options contradict themselves or name no device, UnsupportedError
/// where the backend cannot start.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&);

/// Announces "cuda", "cuda-unordered" and "cuda-sm80" (gpu/README.md) to make_backend and
/// list_backends, usable or with the reason why not: no CUDA, driver or device, or too old a one.
/// Repeating is harmless.
void register_cuda_backend();

/// Seconds that `work`, calls of a cuda backend, takes on the device's own clock, whose caches are
/// full of other data with nothing to be written back. Nothing for another backend.
std::optional<double> cuda_cold_seconds(Backend&, const std::function<void()>& work);

}  // namespace msa
