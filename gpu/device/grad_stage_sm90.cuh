// SPDX-License-Identifier: MIT
// What the roles of the gradient's kernel share: the shared memory of a thread block, how its rings
// are counted, and the instructions that only this kernel needs.
#pragma once

#include "gpu/device/attend_sm90.cuh"
#include "gpu/kernels/sparse_attention_grad_sm90.h"

namespace msa::cuda::sm90 {

constexpr int kRows = kGradStepRows;
constexpr int kRowsBox = kRows * kSwizzle;  // bytes
constexpr int kItemStages = 2;
constexpr int kWide = 64;  // keys of a warpgroup, columns of a product into 32 registers
static_assert(sparse_grad_tile_keys(1) == kWide);

/// BlockSize: sparse_grad_tile_keys() of the block size.
template <int Dim, int BlockSize>
struct GradShape {
    static constexpr int kBoxes = Dim / 64;
    static constexpr int kKeyBox = BlockSize * kSwizzle;  // bytes
    static constexpr int kKeyBytes = kBoxes * kKeyBox;
    static constexpr int kMain = BlockSize / kWide;  // warpgroups that hold dK and dV
    static constexpr int kStages = 4, kSoftStages = 2;
    static constexpr int kThreads = (kMain + 1) * kWarpgroup;
    static constexpr bool kSmall = Dim == 64 && BlockSize == 64;
    static constexpr int kBlocksPerProcessor = kSmall ? 2 : 1;
    static constexpr int kMainRegisters = kSmall ? 200 : 224;
};

template <int Dim, int BlockSize>
struct Shared {
    using S = GradShape<Dim, BlockSize>;
    char q[S::kStages][S::kBoxes][kRowsBox];
    char d_out[S::kStages][S::kBoxes][kRowsBox];
    char k[S::kKeyBytes];
    char v[S::kKeyBytes];
    char d_scores[S::kSoftStages][S::kMain][kRowsBox];  // [rows][64 keys]
    float lse[S::kStages][kRows], delta[S::kStages][kRows];
    uint8_t seen[S::kStages][kRows];         // keys of the block that a row sees
    int slot[S::kStages][kGradStepQueries];  // of the queries, in 16 bytes; negative: none
    int least_seen[S::kStages];
    GradItem items[kItemStages];
    Barrier item_full[kItemStages], item_empty[kItemStages];
    Barrier full[S::kStages], empty[S::kStages];                    // q, d_out and what they need
    Barrier soft_full[S::kSoftStages], soft_empty[S::kSoftStages];  // d_scores
    Barrier keys_full, keys_empty;
};

/// Registers that a product wrote may be read from here on.
template <int N>
__device__ void settle(float (&x)[N]) {
#pragma unroll
    for (float& one : x) asm volatile("" : "+f"(one)::"memory");
}

/// swizzled_operand() of shared memory by its address, as a low word that steps of bytes / 16 are
/// added to; warps agree on it, so that it is kept in uniform registers.
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
/// Arrives at the barrier once this thread's copies so far are there.
__device__ inline void arrive_after_copies(Barrier& barrier) {
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
        : "memory");
}
/// Four 8 x 8 matrices of bf16, transposed: lane l names the row l % 8 of matrix l / 8.
__device__ inline void store_transposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c,
                                        uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
__device__ inline void add_two(float* to, float x, float y) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}

/// Where a count stands in a ring.
template <int Stages>
__device__ int stage_of(uint32_t count) {
    return static_cast<int>(count % Stages);
}
template <int Stages>
__device__ uint32_t parity_of(uint32_t count) {
    return count / Stages % 2;
}

/// Every role: waits for the n-th item of the thread block, and gives its place back.
template <typename Memory>
__device__ const GradItem& wait_item(Memory& shared, uint32_t n) {
    shared.item_full[stage_of<kItemStages>(n)].wait(parity_of<kItemStages>(n));
    return shared.items[stage_of<kItemStages>(n)];
}
template <typename Memory>
__device__ void give_item_back(Memory& shared, uint32_t n) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) shared.item_empty[stage_of<kItemStages>(n)].arrive();
}

}  // namespace msa::cuda::sm90
