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
    static constexpr float kSlack = 8, kMost = 120;  // 2^-kMost is not flushed to 0
    float reference[2] = {-INFINITY, -INFINITY};     // of the rows, not scaled
    float sum[2] = {0, 0};                           // of this thread's columns

    /// Scores of `Parts` equal parts of columns, a block of keys each, become
    /// 2^(scale (score - reference)), 0 where masked. Earlier results must be multiplied by
    /// `factor`. The row sees `seen` keys of a part; with none in any part, it stays as it is.
    /// `any`: whether a row of the warp sees a key of the part. If not, the part's scores are left
    /// as they are: writing zeros here would cost registers in every step. `later`: most rows have
    /// a reference by now, and rows with NaN are computed again. Then weights need not wait for
    /// maxima, which change few references, but results are NaN where a weight would be above
    /// 2^kMost.
    template <int Parts, int Sums>
    __device__ void step(float (&score)[Sums], const int (&seen)[Parts][2], float scale,
                         float (&factor)[2], bool (&any)[Parts], bool later = false) {
        bool some = false, fresh = false;
#pragma unroll
        for (int part = 0; part < Parts; ++part) {
            any[part] = __any_sync(kAllLanes, seen[part][0] > 0 || seen[part][1] > 0);
            some |= any[part];
            for (int side = 0; side < 2; ++side)
                fresh |= seen[part][side] > 0 && reference[side] == -INFINITY;
        }
        factor[0] = factor[1] = 1;
        if (!some) return;
        const bool guess = later && !__any_sync(kAllLanes, fresh);
        if (!guess) refer(score, seen, any, scale, factor);
        float shift[2], total[2] = {0, 0};
        for (int side = 0; side < 2; ++side)
            shift[side] = reference[side] == -INFINITY ? 0 : reference[side] * scale;
#pragma unroll
        for (int part = 0; part < Parts; ++part) {
            if (!any[part]) continue;
            if (guess) mask<Parts>(score, part, seen[part]);
            weigh<Parts>(score, part, seen[part], scale, shift, total);
        }
        // A thread's weights add up to at most this, or one of them may be above 2^kSlack.
        constexpr float kAll = 1 << static_cast<int>(kSlack);
        if (guess && __any_sync(kAllLanes, !(total[0] <= kAll && total[1] <= kAll)))
            follow(score, any, scale, shift, total, factor);
        for (int side = 0; side < 2; ++side) sum[side] = fmaf(sum[side], factor[side], total[side]);
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
    template <int Parts, int Sums>
    __device__ static float& at(float (&score)[Sums], int part, int side, int j, int i) {
        return score[part * (Sums / Parts) + 4 * j + 2 * side + i];
    }

    /// Masks the keys that a row does not see, in rows that see some of the part's keys.
    template <int Parts, int Sums>
    __device__ static void mask(float (&score)[Sums], int part, const int (&seen)[2]) {
        constexpr int kScores = Sums / Parts, kColumns = 2 * kScores;
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            if (seen[side] <= 0 || seen[side] >= kColumns) continue;
            const int end = seen[side] - 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
            for (int j = 0; j < kScores / 4; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    if (8 * j + i >= end) at<Parts>(score, part, side, j, i) = -INFINITY;
        }
    }

    __device__ static float most_of_row(float x) {
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
        return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
    }
    /// The largest score of a part in this thread's columns of a row.
    template <int Parts, int Sums>
    __device__ static float most_of(float (&score)[Sums], int part, int side) {
        float m[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int j = 0; j < Sums / Parts / 4; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i) m[i] = fmaxf(m[i], at<Parts>(score, part, side, j, i));
        return fmaxf(m[0], m[1]);
    }

    /// Masks the scores. A row whose largest is more than kSlack above its reference refers to
    /// that.
    template <int Parts, int Sums>
    __device__ void refer(float (&score)[Sums], const int (&seen)[Parts][2],
                          const bool (&any)[Parts], float scale, float (&factor)[2]) {
        float now[2] = {reference[0], reference[1]};
#pragma unroll
        for (int part = 0; part < Parts; ++part) {
            if (!any[part]) continue;
            mask<Parts>(score, part, seen[part]);
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                // A bound instead of a condition, which would become a branch around all of this.
                const float bound = seen[part][side] > 0 ? INFINITY : -INFINITY;
                now[side] = fmaxf(now[side], fminf(most_of<Parts>(score, part, side), bound));
            }
        }
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            now[side] = most_of_row(now[side]);
            const float above = (now[side] - reference[side]) * scale;
            if (above > kSlack) {  // not: NaN, of two infinities
                factor[side] = exp2_fast(-above);
                reference[side] = now[side];
            }
        }
    }

    /// The same once scores have become weights: where one is above 2^kSlack, the largest becomes
    /// 1, and NaN where that is above 2^kMost.
    template <int Parts, int Sums>
    __device__ void follow(float (&weight)[Sums], const bool (&any)[Parts], float scale,
                           const float (&shift)[2], float (&total)[2], float (&factor)[2]) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            float most = 0;
#pragma unroll
            for (int part = 0; part < Parts; ++part)
                if (any[part]) most = fmaxf(most, most_of<Parts>(weight, part, side));
            const float above = log2f(most_of_row(most));
            if (!(above > kSlack)) continue;
            reference[side] = (shift[side] + above) / scale;
            factor[side] = above > kMost ? NAN : exp2_fast(shift[side] - reference[side] * scale);
            total[side] = 0;
#pragma unroll
            for (int part = 0; part < Parts; ++part)
                if (any[part])
#pragma unroll
                    for (int j = 0; j < Sums / Parts / 4; ++j)
#pragma unroll
                        for (int i = 0; i < 2; ++i)
                            total[side] += at<Parts>(weight, part, side, j, i) *= factor[side];
        }
    }

    /// Turns scores of a part into weights and adds them to the totals. In rows that see none of
    /// the part's keys weights are 0, or NaN if a score is NaN or +inf.
    template <int Parts, int Sums>
    __device__ static void weigh(float (&score)[Sums], int part, const int (&seen)[2], float scale,
                                 const float (&shift)[2], float (&total)[2]) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const float by = seen[side] > 0 ? shift[side] : INFINITY;
            float t[2] = {0, 0};
#pragma unroll
            for (int j = 0; j < Sums / Parts / 4; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& x = at<Parts>(score, part, side, j, i);
                    x = exp2_fast(fmaf(x, scale, -by));
                    t[i] += x;
                }
            total[side] += t[0] + t[1];
        }
    }
};

}  // namespace msa::cuda
