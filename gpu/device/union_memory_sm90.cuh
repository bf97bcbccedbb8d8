// SPDX-License-Identifier: MIT
// The shared memory of a team of gpu/kernels/sparse_attention_union_sm90.cu.
#pragma once

#include "gpu/device/union_task_sm90.cuh"

namespace msa::cuda::sm90 {

/// The shared memory of one team.
template <typename T, int Dim, int BlockSize, Slots Kind>
struct alignas(1024) UnionMemory {
    static constexpr int kTeamsOf = kTeams<T, Dim, BlockSize>;
    static constexpr bool kParts = kTeamsOf == 1 && Kind == Slots::none;  // may unions have parts
    using Threads = UnionThreadsOf<T, Dim, BlockSize>;
    static constexpr int kBlocks = kStepBlocks<T, Dim, BlockSize>, kKeys = kBlocks * BlockSize;
    using S = OperandShape<T, Dim, kKeys>;
    static constexpr int kTasks = Dim == 64 ? 2 : 1;  // with 128, a second would cost a stage
    static constexpr int kStages =
        Kind == Slots::none && Dim < 256 ? S::kStages * 3 / 2 : S::kStages;
    char q[kTasks][S::kQueryBytes];
    char k[kStages][S::kKeyBytes];
    char v[kStages][S::kValueBytes];
    SlotsOf<Kind, Stored<T>, Dim, Threads::kSlotStages> slots[Threads::kTeamWarps];
    UnionBlock blocks[kStages][kBlocks];
    Task tasks[kTasks];
    TaskEnd<kBlocks, BlockSize> kept[Threads::kTeamWarps];
    Ring<kTasks> q_ring;  // tasks and q
    Ring<kStages> k_ring, v_ring;
    TaskScales<T, kTasks, kStages> scales;

    /// What a warp keeps of a task.
    __device__ auto& keep(const Task& task, int warp) {
        if (threadIdx.x % kWarp == 0) {
            kept[warp].keep(task);
            if (kParts) kept[warp].part_row = task.part_row;
        }
        return kept[warp];
    }
    /// Called by one thread, before a barrier of the thread block.
    __device__ void init() {
        q_ring.init(Threads::kConsumers);
        k_ring.init(Threads::kConsumers);
        v_ring.init(Threads::kConsumers);
        for (auto& of_warp : slots) of_warp.init();
        fence_barriers();
    }
};

constexpr int kClearBarriers = 5;  // the first of named barriers, behind those of Turns

/// Called by a warpgroup before it multiplies the last step's values, at `stage`: clears what lies
/// behind the last token of a page, which only the last step can have. Values of e4m3 are copies.
template <typename T, int Dim, int BlockSize, Slots Kind, int Blocks>
__device__ void clear_end(UnionMemory<T, Dim, BlockSize, Kind>& shared, int stage,
                          const TaskEnd<Blocks, BlockSize>& kept, int team, int warpgroup) {
    using S = typename UnionMemory<T, Dim, BlockSize, Kind>::S;
    if constexpr (!kIsE4m3<T>)
        for (int n = 0; n < Blocks; ++n)
            if (kept.there[n] < BlockSize)
                clear_behind<S::kBoxes, S::kKeyBox>(shared.v[stage] + n * (BlockSize * kSwizzle),
                                                    kept.there[n], BlockSize,
                                                    kClearBarriers + 2 * team + warpgroup);
}

}  // namespace msa::cuda::sm90
