// SPDX-License-Identifier: MIT
// Kernels whose thread blocks are in clusters of a size that the launch says: the launch, and a
// barrier of all threads of a cluster. Source: PTX ISA, barrier.cluster.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace msa::cuda::sm90 {

/// The place of this thread block in its cluster, and the thread blocks of the cluster.
__device__ inline int rank_in_cluster() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return static_cast<int>(rank);
}
__device__ inline int cluster_size() {
    uint32_t size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return static_cast<int>(size);
}

// The two halves of a barrier of all threads of a cluster. It orders the initialisation of barriers
// in shared memory, behind fence_barriers(), but no other memory: a full fence takes long.
__device__ inline void arrive_in_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ inline void wait_for_cluster() {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/// launch_early() (early.cuh) in clusters of `cluster` thread blocks, at most 8.
template <typename... Args>
cudaError_t launch_early_in_clusters(void (*kernel)(Args...), int cluster, dim3 grid, int threads,
                                     size_t shared_bytes, cudaStream_t stream,
                                     const Args&... args) {
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace msa::cuda::sm90
