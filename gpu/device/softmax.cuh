// SPDX-License-Identifier: MIT
// The online softmax of bf16 and f16 operands, in the layout of the products' sums (wgmma.cuh,
// mma.cuh).
#pragma once

#include "gpu/device/exp2.cuh"
#include "gpu/device/warp.cuh"

namespace msa::cuda {

/// Running softmax of this thread's two rows. The exponents' reference follows the largest score
/// only once that is kSlack powers of two above it, because each change rescales all results so
/// far. So weights go up to 2^kSlack, which every type here holds with the same relative precision.
struct Softmax {
    static constexpr float kSlack = 8;
    float reference[2] = {-INFINITY, -INFINITY};  // of the rows, not scaled
    float sum[2] = {0, 0};                        // of this thread's columns

    /// Scores of `Parts` equal parts of columns, a block of keys each, become
    /// 2^(scale (score - reference)), 0 where masked. Earlier results must be multiplied by
    /// `factor`. The row sees `seen` keys of a part; with none in any part, it stays as it is.
    /// `any`: whether a row of the warp sees a key of the part. If not, the part's scores are left
    /// as they are: writing zeros here would cost registers in every step.
    template <int Parts, int Sums>
    __device__ void step(float (&score)[Sums], const int (&seen)[Parts][2], float scale,
                         float (&factor)[2], bool (&any)[Parts]) {
        float now[2] = {reference[0], reference[1]};
        bool some = false;
#pragma unroll
        for (int part = 0; part < Parts; ++part) {
            any[part] = __any_sync(kAllLanes, seen[part][0] > 0 || seen[part][1] > 0);
            some |= any[part];
            if (any[part]) meet<Parts>(score, part, seen[part], now);
        }
        factor[0] = factor[1] = 1;
        if (!some) return;
        float shift[2];
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            now[side] = fmaxf(now[side], __shfl_xor_sync(kAllLanes, now[side], 1));
            now[side] = fmaxf(now[side], __shfl_xor_sync(kAllLanes, now[side], 2));
            const float above = (now[side] - reference[side]) * scale;
            if (above > kSlack) {  // not: NaN, of two infinities
                factor[side] = exp2_fast(-above);
                reference[side] = now[side];
            }
            shift[side] = reference[side] == -INFINITY ? 0 : reference[side] * scale;
            sum[side] *= factor[side];
        }
#pragma unroll
        for (int part = 0; part < Parts; ++part)
            if (any[part]) weigh<Parts>(score, part, seen[part], scale, shift);
    }
    /// The same for a single part.
    template <int Sums>
    __device__ void step(float (&score)[Sums], const int (&seen)[2], float scale,
                         float (&factor)[2]) {
        const int one[1][2] = {{seen[0], seen[1]}};
        bool any[1];
        step(score, one, scale, factor, any);
    }

private:
    /// Masks the keys that a row does not see, in rows that see some of the part's keys. `now`
    /// becomes the largest score of this thread's columns, if that is larger.
    template <int Parts, int Sums>
    __device__ static void meet(float (&score)[Sums], int part, const int (&seen)[2],
                                float (&now)[2]) {
        constexpr int kScores = Sums / Parts, kColumns = 2 * kScores;
        const auto at = [&](int side, int j, int i) -> float& {
            return score[part * kScores + 4 * j + 2 * side + i];
        };
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            if (seen[side] <= 0 || seen[side] >= kColumns) continue;
            const int end = seen[side] - 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
            for (int j = 0; j < kScores / 4; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    if (8 * j + i >= end) at(side, j, i) = -INFINITY;
        }
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            float m[2] = {-INFINITY, -INFINITY};
#pragma unroll
            for (int j = 0; j < kScores / 4; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) m[i] = fmaxf(m[i], at(side, j, i));
            // A bound instead of a condition, which would become a branch around all of this.
            const float bound = seen[side] > 0 ? INFINITY : -INFINITY;
            now[side] = fmaxf(now[side], fminf(fmaxf(m[0], m[1]), bound));
        }
    }

    /// Turns scores of a part into weights and adds them to the sums. In rows that see none of the
    /// part's keys weights are 0, or NaN if a score is NaN or +inf.
    template <int Parts, int Sums>
    __device__ void weigh(float (&score)[Sums], int part, const int (&seen)[2], float scale,
                          const float (&shift)[2]) {
        constexpr int kScores = Sums / Parts;
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const float by = seen[side] > 0 ? shift[side] : INFINITY;
            float t[2] = {0, 0};
#pragma unroll
            for (int j = 0; j < kScores / 4; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& x = score[part * kScores + 4 * j + 2 * side + i];
                    x = exp2_fast(fmaf(x, scale, -by));
                    t[i] += x;
                }
            sum[side] += t[0] + t[1];
        }
    }
};

}  // namespace msa::cuda
