// SPDX-License-Identifier: MIT
// Rows of q and d_out that the lanes of a producer warp gather, 16 bytes at a time. The unit of
// bulk copies would take as long for a box of a query's few heads as for a large one.
#pragma once

#include "gpu/device/grad_stage_sm90.cuh"

namespace msa::cuda::sm90 {

/// 16 bytes by a lane, zeros where there is nothing to copy.
__device__ inline void copy_chunk(uint32_t to, const void* from, bool wanted) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
                 "l"(from), "r"(wanted ? 16 : 0), "l"(static_cast<uint64_t>(Keep::longest))
                 : "memory");
}

/// Which rows of a step a lane looks up: its own number and the one 32 behind it.
struct LaneRows {
    static constexpr int kCount = kRows / kWarp;
    int use[kCount];   // of the step; 2^30 where no query fills the row
    int head[kCount];  // of the group

    __device__ explicit LaneRows(const SparseGradArgs& args) {
#pragma unroll
        for (int half = 0; half < kCount; ++half) {
            const int row = lane_id() + kWarp * half;
            use[half] = args.query_of_row(row);
            head[half] = row - use[half] * args.group_size;
            if (use[half] >= args.step_queries) use[half] = 1 << 30;
        }
    }
    /// Row of [Nq Hq] of the query that fills it; negative without one.
    __device__ int place(const SparseGradArgs& args, int half, int query, int group) const {
        return query < 0 ? -1 : query * args.query_heads + group * args.group_size + head[half];
    }
};

/// By a warp: a step's rows of q or d_out, lying as boxes with the 128-byte swizzle do. Lane l
/// knows in `from` where rows l and l + 32 are; of a negative one zeros are written. They are a
/// group of copies.
template <int Dim>
__device__ void copy_rows(char* to, const void* rows, const int (&from)[LaneRows::kCount]) {
    constexpr int kChunks = Dim / 8, kAtOnce = kWarp / kChunks;  // of a row; rows at once
    const int lane = lane_id(), chunk = lane % kChunks;
    const char* const column = static_cast<const char*>(rows) + 16 * chunk;
    const uint32_t box = shared_address(to) + static_cast<uint32_t>(chunk / 8 * kRowsBox);
#pragma unroll
    for (int half = 0; half < LaneRows::kCount; ++half)
#pragma unroll 4
        for (int first = 0; first < kWarp; first += kAtOnce) {
            const int in_half = first + lane / kChunks, row = in_half + kWarp * half;
            const int place = __shfl_sync(kAllLanes, from[half], in_half);
            copy_chunk(box + static_cast<uint32_t>(row * kSwizzle + (chunk ^ row) % 8 * 16),
                       column + int64_t{max(place, 0)} * (2 * Dim), place >= 0);
        }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/// By a warp that copied rows: all are there but those of the `Left` steps since. Each lane waits
/// for its copies and orders them before products, which read through the proxy of bulk copies; one
/// lane arrives for all. A producer looks a step later, when the copies have had time, and at the
/// end of an item at once: what it waits for is never another warp.
template <int Left>
__device__ void hand_on(Barrier& full) {
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
    fence_shared();
    __syncwarp();
    if (lane_id() == 0) full.arrive();
}

}  // namespace msa::cuda::sm90
