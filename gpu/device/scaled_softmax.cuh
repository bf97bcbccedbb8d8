// SPDX-License-Identifier: MIT
// The online softmax of e4m3 operands and their scales.
//
// A row's logits are its products times one factor, made of the scales of q and k. The scale s of a
// block's values goes into the weights. With x = logit + log2 s, a weight is 2^(x - running max of
// x + 8). So the largest term of an output always uses the range of e4m3, and outputs of different
// blocks add up without another factor. The softmax's denominator adds weight / s, in float.
#pragma once

#include "gpu/device/exp2.cuh"
#include "gpu/device/warp.cuh"

namespace msa::cuda {

/// The scales of a block's keys and values in the form that the softmax uses.
struct BlockScales {
    float k, v_log2, v_inverse;
};
__device__ inline BlockScales block_scales(float k, float v) { return {k, log2f(v), 1 / v}; }

/// Running softmax of this thread's two rows.
struct ScaledSoftmax {
    static constexpr float kLargestWeight = 8;      // log2 of it: 256; e4m3 goes up to 448
    float running_max[2] = {-INFINITY, -INFINITY};  // of logit + log2 of the values' scale, base 2
    float sum[2] = {0, 0};  // of this thread's columns: weights over the values' scale

    /// log2 of the unit of the row's sum and outputs.
    __device__ float best(int side) const { return running_max[side] - kLargestWeight; }

    /// weigh() computes 2^(score * by + offset). `any`: whether a row of the warp sees a key of the
    /// block.
    struct Step {
        bool any;
        float by[2], offset[2];
    };

    /// Masks the scores and updates the running maximum. Earlier results must be multiplied by
    /// `factor`. `scale` turns each row's products into base-2 logits, except for the scale of k.
    /// The row sees `seen` keys of the block; with none, it stays as it is.
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

    /// Turns scores into weights, 0 where masked, and adds them to the sums. Not to be called if
    /// step.any is false; all weights are then 0.
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

}  // namespace msa::cuda
