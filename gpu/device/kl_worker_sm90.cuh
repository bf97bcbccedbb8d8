// SPDX-License-Identifier: MIT
// A consumer warpgroup of index_kl_sm90: 64 keys of a block. Its products, as those of
// gpu/device/wgmma.cuh, have keys as rows and uses, or (use, head), as columns.
#pragma once

#include <limits>

#include "gpu/device/exp2.cuh"
#include "gpu/device/kl_stage_sm90.cuh"
#include "gpu/device/mma_tile.cuh"

namespace msa::cuda::sm90 {

/// Adds the values of the two lanes that differ in bit `step`. Each keeps half of the sums: the
/// lane whose bit is set keeps the second half.
template <int N>
__device__ __forceinline__ void meet(const float (&x)[2 * N], int step, float (&sum)[N]) {
    const bool upper = (lane_id() & step) != 0;
#pragma unroll
    for (int n = 0; n < N; ++n)
        sum[n] =
            (upper ? x[N + n] : x[n]) + __shfl_xor_sync(kAllLanes, upper ? x[n] : x[N + n], step);
}

/// Sums 2^HeadBits neighbouring columns of one of the thread's two rows. The thread keeps the sums
/// of 16 >> HeadBits uses, in the order of kl_use().
template <int HeadBits>
__device__ __forceinline__ void join_heads(const float (&x)[kKlSums], int side,
                                           float (&sum)[16 >> HeadBits]) {
    float pair[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) pair[j] = x[4 * j + 2 * side] + x[4 * j + 2 * side + 1];
    if constexpr (HeadBits == 2) {
        meet<4>(pair, 1, sum);
    } else if constexpr (HeadBits == 3) {
        float half[4];
        meet<4>(pair, 2, half);
        meet<2>(half, 1, sum);
    } else {
        float four[4], half[2];
#pragma unroll
        for (int c = 0; c < 4; ++c) four[c] = pair[2 * c] + pair[2 * c + 1];
        meet<2>(four, 2, half);
        meet<1>(half, 1, sum);
    }
}

template <typename T, int HeadBits, int Dim, int IndexDim, int BlockSize>
struct KlWorker {
    using Value = T;
    static constexpr int kHeadBits = HeadBits;
    using S = KlShape<Dim, IndexDim, BlockSize>;
    using Memory = KlMemory<Dim, IndexDim, BlockSize>;
    using Sums = float[kKlSums];
    using Lse = float2[8];
    static constexpr int kWorkThreads = S::kMain * kWarpgroup;

    const KlTunedArgs& args;
    Memory& shared;
    const int part;  // the block's keys from 64 `part` on
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    const int lane = thread % kWarp, warp = thread / kWarp, quad = lane % 4;
    const int row = 16 * warp + lane / 4;  // of a product; the other: + 8
    const float scale = args.blocks.scale * kLog2E, index_scale = args.blocks.index_scale * kLog2E;
    const float share = kKlUnit<T> / static_cast<float>(args.blocks.heads / args.blocks.groups);
    // Operands of the first stage; stages are a constant number of bytes apart.
    const uint32_t q_rows = operand_low(shared_address(shared.q));
    const uint32_t index_q_rows = operand_low(shared_address(shared.index_q), kKlRowsBox);
    const uint32_t index_k_rows =
        operand_low(shared_address(shared.index_k[0] + part * 64 * kSwizzle));
    const uint32_t index_k_columns =
        operand_low(shared_address(shared.index_k[part < S::kIndexBoxes ? part : 0]));
    const uint32_t high_rows = operand_low(shared_address(shared.high));
    // stmatrix: this lane's row, and its 16 bytes in the swizzle.
    const uint32_t part_row =
        (lane / 16 * 8 + lane % 8) * kSwizzle + (((2 * warp + lane / 8 % 2) ^ (lane % 8)) * 16);
    RowOperand<ScoreShape<Dim, T>> keys;
    float d_keys[IndexDim / 2];
    uint32_t lap = 0, tile = 0, item = 0;  // so far

    __device__ KlWorker(const KlTunedArgs& a, Memory& memory, int p)
        : args(a), shared(memory), part(p) {}

    /// Starts the scores of the columns of a step of the lap.
    template <int Step>
    __device__ __forceinline__ void start_step(Sums& s) {
        shared.full[Step].wait(lap % 2);
        wgmma_fence();
#pragma unroll
        for (int d = 0; d < Dim / 16; ++d)
            multiply_in<T>(s, keys.word + 4 * d,
                           operand(q_rows, (Step * S::kBoxes + d / 4) * kKlRowsBox + d % 4 * 32),
                           d > 0);
        wgmma_commit();
    }
    /// The lse of a step's columns. It is read before the next step starts, behind whose products
    /// it would come late.
    template <int Step>
    __device__ __forceinline__ void read_lse(Lse& lse) const {
#pragma unroll
        for (int j = 0; j < 8; ++j)
            lse[j] = *reinterpret_cast<const float2*>(shared.lse[Step] + 8 * j + 2 * quad);
    }

    /// Starts the index scores of the tile's uses.
    __device__ __forceinline__ void start_index_scores(Sums& s) {
        const int stage = stage_of<S::kTileStages>(tile);
        shared.keys_full.wait(parity_of<1>(item));
        shared.tile_full[stage].wait(parity_of<S::kTileStages>(tile));
        fence_shared();  // cp.async wrote index_q: makes it visible to the products
        const uint32_t q = index_q_rows + stage * (S::kIndexBoxes * kKlRowsBox >> 4);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < IndexDim / 16; ++step)
            multiply_in<T>(s, operand(index_k_rows, step / 4 * S::kKeyBox + step % 4 * 32),
                           operand(q, step / 4 * kKlRowsBox + step % 4 * 32), step > 0);
        wgmma_commit();
    }

    /// Computes the probabilities of a step's columns. Stores their means over the heads, times
    /// kKlUnit, to the thread's own places in shared memory. `Behind` later products may still run.
    template <int Step, int Behind>
    __device__ __forceinline__ void teach(Sums& s, const Lse& lse, int lap_of_tile) {
        wgmma_wait<Behind>();
        settle(s);
        __syncwarp();
        if (lane == 0) shared.empty[Step].arrive();
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                float* const x = s + 4 * j + 2 * side;
                x[0] = exp2_fast(fmaf(x[0], scale, -lse[j].x));
                x[1] = exp2_fast(fmaf(x[1], scale, -lse[j].y));
            }
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            float mean[16 >> HeadBits];
            join_heads<HeadBits>(s, side, mean);
            if constexpr (HeadBits == 4) {
                const int at = (kKlStages * lap_of_tile + Step) / 2 * 4 + 2 * side + Step % 2;
                shared.targets[part][at][thread] = mean[0] * share;
            } else {
                constexpr int kColumns = 8 >> HeadBits;  // of 8 uses
                const int at = 4 * kColumns * (kKlStages * lap_of_tile + Step) + 2 * side;
#pragma unroll
                for (int n = 0; n < 2 * kColumns; ++n)
                    shared.targets[part][at + n / 2 * 4 + n % 2][thread] = mean[n] * share;
            }
        }
    }

    /// Index scores become t - p, times kKlUnit, 0 where a key is not seen and NaN where its score
    /// is not finite. Stores the KL of the warp's keys.
    __device__ __forceinline__ void compare(Sums& s, const KlUses& uses) {
        const int key = 64 * part + row;
        bool finite = true;
        float kl[16];  // in bits, times kKlUnit
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int use = 8 * j + 2 * quad;
            const float2 lse = *reinterpret_cast<const float2*>(uses.index_lse + use);
            const uchar2 seen = *reinterpret_cast<const uchar2*>(uses.seen + use);
            kl[2 * j] = kl[2 * j + 1] = 0;
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int e = 4 * j + n;
                const float score = s[e], p = shared.targets[part][e][thread];
                const float log_t = fmaf(score, index_scale, n % 2 == 0 ? -lse.x : -lse.y);
                const bool is_finite = isfinite(score);
                const bool sees = key + 8 * (n / 2) < (n % 2 == 0 ? seen.x : seen.y);
                finite = finite && is_finite;
                const float term = p * (log2_fast(p) - log_t);
                kl[2 * j + n % 2] += sees && !(p < std::numeric_limits<float>::min()) ? term : 0.0F;
                s[e] = !sees ? 0.0F : is_finite ? exp2_fast(log_t) - p : NAN;
            }
        }
        if (!finite) shared.unsound = tile + 1;
        if (args.blocks.kl == nullptr) return;
        float eight[8], four[4], two[2];
        meet<8>(kl, 16, eight);
        meet<4>(eight, 8, four);
        meet<2>(four, 4, two);
        *reinterpret_cast<float2*>(shared.kl[4 * part + warp] + 2 * lane) =
            make_float2(two[0], two[1]);
    }
};

}  // namespace msa::cuda::sm90
