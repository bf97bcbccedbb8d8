// SPDX-License-Identifier: MIT
// The shared memory of gpu/kernels/sparse_attention_grad_sm80.cu, and the steps of an item, which
// all threads of a thread block bring there.
#pragma once

#include "gpu/device/stream_mma.cuh"
#include "gpu/kernels/sparse_attention_grad_sm80.h"

namespace msa::cuda {

/// Keys: sparse_grad_tile_keys() of the block size. Rows of a step, of which Stages are there.
template <int Dim, int Keys, int Rows, int Stages>
struct Shared {
    static constexpr int kDim = Dim, kKeys = Keys, kRows = Rows, kStages = Stages;
    static constexpr int kUsesAhead = Stages + 2;        // steps
    static constexpr int kSides = grad_sides_sm80(Dim);  // warps of the same 16 keys
    static constexpr int kKeyWarps = Keys / 16, kWarps = kKeyWarps * kSides;
    static constexpr int kThreads = kWarps * kWarp;
    static constexpr int kRowTiles = Rows / 16;
    static constexpr int kChannels = Dim * kRowTiles / kWarps;  // of dQ of a warp
    uint16_t q[kStages][kRows * Dim], d_out[kStages][kRows * Dim];
    uint16_t k[Keys * Dim], v[Keys * Dim];
    uint16_t d_scores[Keys * kRows];  // dS', in T
    float lse[kStages][kRows], delta[kStages][kRows];
    GradUse uses[kUsesAhead + 1][kRows];  // of each row of a step; rows of none have any
    float4
        weights[kSides == 1 ? 1 : Keys / 16 * Rows / 8 * kWarp];  // P' of one side, for the other
    int least_seen[kStages][kRows / kWarp];
    int taken;

    /// Of dS': 16 bytes of a key, rows from 8 chunk on. Permuted as MmaTile.
    __device__ uint32_t soft(int key, int chunk) {
        const int swizzle = Rows == 32 ? key >> 1 & 3 : (key & 1) << 2 | (key >> 1 & 3);
        return address_in_shared(d_scores) + key * Rows * 2 + ((chunk ^ swizzle) << 4);
    }
    __device__ const GradUse& use(int step, int row) const {
        return uses[step % (kUsesAhead + 1)][row];
    }
};

__device__ inline void copy_float(float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address_in_shared(to)), "l"(from)
                 : "memory");
}
__device__ inline void store_word(uint32_t address, uint32_t word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

/// Brings the steps of an item.
template <typename SharedHere>
struct Steps {
    static constexpr int Dim = SharedHere::kDim, kKeys = SharedHere::kKeys,
                         kRows = SharedHere::kRows, kStages = SharedHere::kStages,
                         kUsesAhead = SharedHere::kUsesAhead;
    const SparseGradArgs& args;
    SharedHere& shared;
    const GradUse* uses;
    int group, count;

    /// Does a row of a step have a use?
    __device__ bool has(int step, int row) const {
        const int use = args.query_of_row(row);
        return use < args.step_queries && step * args.step_queries + use < count;
    }
    /// Starts the copies of a step's uses.
    __device__ void fetch_uses(int step) const {
        const int row = static_cast<int>(threadIdx.x);
        if (row >= kRows || !has(step, row)) return;
        const int use = step * args.step_queries + args.query_of_row(row);
        copy_chunk(&shared.uses[step % (kUsesAhead + 1)][row], uses + use, true);
    }
    /// Starts the copies of a step's rows, whose uses are there; none behind the last one.
    __device__ void fetch(int step) const {
        constexpr int kChunks = Dim / kChunk, kAtOnce = SharedHere::kThreads / kChunks;
        if (step * args.step_queries >= count) return;
        const int stage = step % kStages, first_head = group * args.group_size;
        const auto from = [&](int row) {  // (query, head)
            const int head = row - args.query_of_row(row) * args.group_size;
            return int64_t{shared.use(step, row).query} * args.query_heads + first_head + head;
        };
        const int chunk = static_cast<int>(threadIdx.x) % kChunks;
#pragma unroll
        for (int first = 0; first < kRows; first += kAtOnce) {
            const int row = first + static_cast<int>(threadIdx.x) / kChunks;
            const bool there = has(step, row);
            const int64_t at = there ? from(row) * Dim + chunk * kChunk : 0;
            copy_chunk(MmaTile<Dim>{shared.q[stage]}.chunk(row, chunk),
                       static_cast<const uint16_t*>(args.q) + at, there);
            copy_chunk(MmaTile<Dim>{shared.d_out[stage]}.chunk(row, chunk),
                       static_cast<const uint16_t*>(args.d_out) + at, there);
        }
        const int row = static_cast<int>(threadIdx.x);
        if (row >= kRows) return;
        const bool there = has(step, row);
        const int64_t at = there ? from(row) : args.queries * args.query_heads;
        copy_float(shared.lse[stage] + row, args.workspace.lse + at);
        copy_float(shared.delta[stage] + row, args.workspace.delta + at);
        const int least = __reduce_min_sync(kAllLanes, there ? shared.use(step, row).seen : kKeys);
        if (lane_id() == 0) shared.least_seen[stage][warp_id()] = least;
    }
};

/// sum [16, Rows] = 16 keys times the rows of a stage, which begin at these bytes.
template <typename T, int Dim, int Rows>
__device__ void form_scores(float (&sum)[Rows / 2], const LaneWords<Dim>& words, uint32_t keys,
                            uint32_t rows) {
    for (float& x : sum) x = 0;
#pragma unroll
    for (int step = 0; step < Dim / 32; ++step) {
        const uint4 low = words.at(0, step, keys), high = words.at(8, step, keys);
#pragma unroll
        for (int j = 0; j < Rows / 8; ++j)
            multiply_words<T>(sum + 4 * j, low, high, words.at(8 * j, step, rows));
    }
}

}  // namespace msa::cuda
