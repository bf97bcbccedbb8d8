// SPDX-License-Identifier: MIT
// Kernels that begin before the previous one in the stream has ended (programmatic dependent
// launch), from compute capability 9.0 on. On older GPUs the functions of kernels do nothing.
#pragma once

#include <cuda_runtime.h>

namespace msa::cuda {

/// A kernel started by launch_early: returns once the kernel before it is done.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets a kernel started by launch_early behind this one begin. It must come after
/// wait_for_previous_kernel(), unless the previous kernel is of the same call and has waited: what
/// begins next may read all memory that the call before this one did not write.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Launches a kernel. If `early`, it may begin before the previous one in the stream has ended, and
/// must call wait_for_previous_kernel(); only from compute capability 9.0 on.
template <typename... Args>
cudaError_t launch_early_if(bool early, void (*kernel)(Args...), dim3 grid, int threads,
                            size_t shared_bytes, cudaStream_t stream, const Args&... args) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = early ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args...);
}
template <typename... Args>
cudaError_t launch_early(void (*kernel)(Args...), dim3 grid, int threads, size_t shared_bytes,
                         cudaStream_t stream, const Args&... args) {
    return launch_early_if(true, kernel, grid, threads, shared_bytes, stream, args...);
}

}  // namespace msa::cuda
