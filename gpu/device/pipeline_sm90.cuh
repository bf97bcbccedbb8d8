// SPDX-License-Identifier: MIT
// Common parts of kernels with producer warps and work items: stages of ring buffers, the exchange
// of items, and the instructions between copies and products.
#pragma once

#include "gpu/device/sm90.cuh"
#include "gpu/device/warp.cuh"

namespace msa::cuda::sm90 {

constexpr int kItemStages = 2;

/// Tells the compiler that a product has written these registers. They may be read from here on.
template <int N>
__device__ void settle(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

/// The low word of the descriptor of an operand in shared memory; operand() adds an offset. Its
/// rows have 128 bytes in the 128-byte swizzle, groups of 8 rows are 1024 bytes apart and aligned
/// to that; steps of 32 bytes along a row are allowed. If the rows run along K (transposed), boxes
/// of 64 channels are `box_bytes` apart. The word is the same in all lanes, so the compiler keeps
/// it in a uniform register.
__device__ inline uint32_t operand_low(uint32_t address, uint32_t box_bytes = 16) {
    return __shfl_sync(kAllLanes, (box_bytes >> 4 << 16) | (address >> 4), 0);
}
__device__ inline uint64_t operand(uint32_t low, int bytes) {
    constexpr uint64_t kHigh = (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32);
    return kHigh | (low + static_cast<uint32_t>(bytes >> 4));
}

__device__ inline void copy_float(float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}
/// Arrives at the barrier once this thread's copies so far have arrived.
__device__ inline void arrive_after_copies(Barrier& barrier) {
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
        : "memory");
}
/// Stores four 8 x 8 matrices of 16-bit values, transposed. Lane l gives the address of row l % 8
/// of matrix l / 8.
__device__ inline void store_transposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c,
                                        uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/// The stage, and the parity of the phase, of the count-th use of a ring buffer.
template <int Stages>
__device__ int stage_of(uint32_t count) {
    return static_cast<int>(count % Stages);
}
template <int Stages>
__device__ uint32_t parity_of(uint32_t count) {
    return count / Stages % 2;
}

/// Waits for the thread block's n-th item. give_item_back() frees its place.
template <typename Memory>
__device__ const auto& wait_item(Memory& shared, uint32_t n) {
    shared.item_full[stage_of<kItemStages>(n)].wait(parity_of<kItemStages>(n));
    return shared.items[stage_of<kItemStages>(n)];
}
template <typename Memory>
__device__ void give_item_back(Memory& shared, uint32_t n) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) shared.item_empty[stage_of<kItemStages>(n)].arrive();
}

}  // namespace msa::cuda::sm90
