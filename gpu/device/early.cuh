// SPDX-License-Identifier: MIT
// For kernels that begin before the previous one in the stream has ended (launch_early of
// gpu/device/sm90.cuh), from compute capability 9.0 on. On older GPUs these functions do nothing.
#pragma once

namespace msa::cuda {

/// A kernel started by launch_early: returns once the kernel before it is done.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets a kernel started by launch_early behind this one begin.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace msa::cuda
