// SPDX-License-Identifier: MIT
// Kernels that begin before the one ahead of them in the stream is done, from compute capability
// 9.0 on (launch_early of gpu/device/sm90.cuh). Before it there are none, and these do nothing.
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
