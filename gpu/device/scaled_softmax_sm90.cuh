// SPDX-License-Identifier: MIT
// The online softmax of e4m3 operands: what attend_e4m3_sm90.cuh says of scales and weights.
#pragma once

#include "gpu/device/exp2.cuh"
#include "gpu/device/warp.cuh"

namespace msa::cuda::sm90 {

/// What the scales of a block's keys and values become.
struct BlockScales {
    float k, v_log2, v_inverse;
};
__device__ inline BlockScales block_scales(float k, float v) { return {k, log2f(v), 1 / v}; }

/// Running softmax of this thread's two rows.
struct ScaledSoftmax {
    static constexpr float kLargestWeight = 8;      // its power of two; e4m3 goes up to 448
    float running_max[2] = {-INFINITY, -INFINITY};  // of logit + log2 of the values' scale, base 2
    float sum[2] = {0, 0};  // of this thread's columns: weights over the values' scale

    /// The power of two that the row's sum and outputs are multiples of.
    __device__ float best(int side) const { return running_max[side] - kLargestWeight; }

    /// What weigh() needs of a block: a score's factor and what is added to it; `any`: does a row
    /// of the warp see any of its keys?
    struct Step {
        bool any;
        float by[2], offset[2];
    };

    /// Masks the scores and takes them into the running maximum; `factor` is what results made
    /// before must be multiplied with. `scale`: of the products of each row, to base 2, but for
    /// k's. `seen` keys of the block are visible to the row; with none, the row stays as it is.
    template <int Sums>
    __device__ Step meet(float (&score)[Sums], const int (&seen)[2], const float (&scale)[2],
                         const BlockScales& block, float (&factor)[2]) {
        constexpr int kColumns = 2 * Sums;
        Step step{!__all_sync(kAllLanes, seen[0] <= 0 && seen[1] <= 0), {}, {}};
        factor[0] = factor[1] = 1;
        if (!step.any) return step;
        const int first_column = 2 * (threadIdx.x % 4);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            if (seen[side] < kColumns) {
#pragma unroll
                for (int j = 0; j < Sums / 4; ++j)
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                        if (8 * j + first_column + i >= seen[side])
                            score[4 * j + 2 * side + i] = -INFINITY;
            }
            float m[2] = {-INFINITY, -INFINITY};
#pragma unroll
            for (int j = 0; j < Sums / 4; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) m[i] = fmaxf(m[i], score[4 * j + 2 * side + i]);
            float most = fmaxf(m[0], m[1]);
            most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
            most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
            step.by[side] = scale[side] * block.k;
            const float now = fmaxf(running_max[side], fmaf(most, step.by[side], block.v_log2));
            if (now != running_max[side]) factor[side] = exp2_fast(running_max[side] - now);
            running_max[side] = now;
            step.offset[side] = block.v_log2 + (now == -INFINITY ? 0 : kLargestWeight - now);
        }
        return step;
    }

    /// Scores become weights, 0 where masked, and go to the sums. Not for step.any == false: the
    /// weights are 0 then.
    template <int Sums>
    __device__ void weigh(float (&score)[Sums], const Step& step, const BlockScales& block,
                          const float (&factor)[2]) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            float t[2] = {0, 0};
#pragma unroll
            for (int j = 0; j < Sums / 4; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& x = score[4 * j + 2 * side + i];
                    x = exp2_fast(fmaf(x, step.by[side], step.offset[side]));
                    t[i] += x;
                }
            sum[side] = fmaf(sum[side], factor[side], (t[0] + t[1]) * block.v_inverse);
        }
    }
};

}  // namespace msa::cuda::sm90
