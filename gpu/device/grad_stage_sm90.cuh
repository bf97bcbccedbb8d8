// SPDX-License-Identifier: MIT
// The shared memory through which the warps of the gradient's kernel work together, and the
// instruction that only this kernel needs.
#pragma once

#include "gpu/device/attend_sm90.cuh"
#include "gpu/device/pipeline_sm90.cuh"
#include "gpu/kernels/sparse_attention_grad_sm90.h"

namespace msa::cuda::sm90 {

constexpr int kRows = kGradStepRows;
constexpr int kRowsBox = kRows * kSwizzle;  // bytes
constexpr int kWide = 64;  // keys of a warpgroup, columns of a product into 32 registers
static_assert(sparse_grad_tile_keys(1) == kWide);

/// BlockSize: sparse_grad_tile_keys() of the block size.
template <int Dim, int BlockSize>
struct GradShape {
    static constexpr int kBoxes = Dim / 64;
    static constexpr int kKeyBox = BlockSize * kSwizzle;  // bytes
    static constexpr int kKeyBytes = kBoxes * kKeyBox;
    static constexpr int kParts = BlockSize / kWide;
    // Warpgroups that hold dK and dV; with 256 channels, dV or dK of the same keys.
    static constexpr bool kTwoSides = Dim > 128;
    static constexpr int kMain = kTwoSides ? 2 : kParts;
    static constexpr int kOwnBoxes = kBoxes > kMain ? kBoxes / kMain : 1;  // of dQ, of each of them
    static constexpr int kStages = kTwoSides ? 2 : 4, kSoftStages = 2;
    static constexpr int kThreads = (kMain + 1) * kWarpgroup;
    static constexpr bool kSmall = Dim == 64 && BlockSize == 64;
    static constexpr int kBlocksPerProcessor = kSmall ? 2 : 1;
    static constexpr int kMainRegisters = kSmall ? 200 : kMain == 1 ? 240 : 224;
    static constexpr int kProducerRegisters = 56;
    static_assert(kMain * kMainRegisters + kProducerRegisters <=
                  launch_registers(kThreads, kBlocksPerProcessor));
};

template <int Dim, int BlockSize>
struct Shared {
    using S = GradShape<Dim, BlockSize>;
    char q[S::kStages][S::kBoxes][kRowsBox];
    char d_out[S::kStages][S::kBoxes][kRowsBox];
    char k[S::kKeyBytes];
    char v[S::kKeyBytes];
    char d_scores[S::kSoftStages][S::kParts][kRowsBox];  // [rows][64 keys]
    // P' of a step that one side has for the other, as its threads hold it.
    float4 weights[S::kTwoSides ? kRows / 8 : 1][S::kTwoSides ? kWarpgroup : 1];
    float lse[S::kStages][kRows], delta[S::kStages][kRows];
    uint8_t seen[S::kStages][kRows];         // keys of the block that a row sees
    int slot[S::kStages][kGradStepQueries];  // of the queries, in 16 bytes; negative: none
    int least_seen[S::kStages];
    GradItem items[kItemStages];
    Barrier item_full[kItemStages], item_empty[kItemStages];
    Barrier full[S::kStages], empty[S::kStages];                    // q, d_out and what they need
    Barrier soft_full[S::kSoftStages], soft_empty[S::kSoftStages];  // d_scores
    Barrier keys_full, keys_empty;
    Barrier weights_full, weights_empty;

    /// Called by one thread, before a barrier of the thread block.
    __device__ void init() {
        for (Barrier& b : item_full) b.init(1);
        for (Barrier& b : item_empty) b.init(4 * S::kMain + 1);
        for (Barrier& b : full) b.init(2 + kWarp);
        for (Barrier& b : empty) b.init(4 * S::kMain);
        for (Barrier& b : soft_full) b.init(4 * S::kParts);
        for (Barrier& b : soft_empty) b.init(4 * S::kMain);
        keys_full.init(1);
        keys_empty.init(4 * S::kMain);
        weights_full.init(4);
        weights_empty.init(4);
        fence_barriers();
    }
};

__device__ inline void add_two(float* to, float x, float y) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}

}  // namespace msa::cuda::sm90
