// SPDX-License-Identifier: MIT
// t - p of a tile of queries, and its contributions to d_index_k (in registers) and d_index_q (in
// slots).
#pragma once

#include "gpu/device/kl_teacher.cuh"

namespace msa::cuda {

/// d_index_k of the warp's 16 keys: sums[d] has the 8 dimensions from 8 d on; rows are keys.
template <int kIndexDim>
using KeySums = float[kIndexDim / 8][4];

/// Operand B of two products. If an index score is not finite, t - p is NaN for a key that is seen
/// and 0 for one that is not. So the operand is made finite, in order that 0 stays 0.
template <typename T, int kIndexDim>
__device__ void load_sound(const MmaTile<kIndexDim>& from, int row, int column, bool sound,
                           uint32_t (&b)[4]) {
    from.load_b(b, row, column);
    if (!sound)
        for (uint32_t& pair : b) pair = finite_or_zero<T>(pair);
}

/// Stores the warp's part of the KL of 16 queries. A lane has 2 queries of each half of them.
template <typename Shared>
__device__ void store_kl(const Shared& shared, int first_key, int first, float (&kl)[2][2]) {
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            for (int step = 4; step < kWarp; step *= 2)
                kl[n][i] += __shfl_xor_sync(kAllLanes, kl[n][i], step);
            if (lane_id() < 4)
                shared.kl[first_key / kStepKeys * Shared::kQueries + query_of(first, n, i)] =
                    kl[n][i];
        }
}

/// Stores t - p, times kKlUnit, of the warp's 16 keys and the queries from `first` on to shared
/// memory, and adds their contribution to d_index_k.
template <typename Shared, int kIndexDim>
__device__ void compare(const KlBlocks& a, const Shared& shared,
                        const typename Shared::Shape::Meta& meta, const MmaTile<kIndexDim>& rows,
                        int first_key, int first, KeySums<kIndexDim>& sums) {
    using T = typename Shared::Value;
    float score[2][4];
    index_scores_of<T>(shared.index_keys, first_key, rows, first, score);
    const float scale = a.index_scale * kLog2E;
    float kl[2][2] = {};
    bool finite = true;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int key = key_of(first_key, e), query = query_of(first, n, e);
            const float log_t = fmaf(score[n][e], scale, -meta.index_lse[query]);
            const bool is_finite = isfinite(score[n][e]);
            finite = finite && is_finite;
            if (key >= meta.seen[query]) {
                score[n][e] = 0;
                continue;
            }
            const float p = shared.teacher[query * Shared::kTeacherStride + key];
            if (a.kl != nullptr && !(p <= 0)) kl[n][e % 2] += p * (log2f(p) - log_t) * kLn2;
            score[n][e] = is_finite ? (exp2_fast(log_t) - p) * kKlUnit<T> : NAN;
        }
    if (a.kl != nullptr) store_kl(shared, first_key, first, kl);
    uint32_t high[4], low[4];  // rows are keys, columns queries
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const SplitPair<T> pair(score[n][2 * side], score[n][2 * side + 1]);
            high[2 * n + side] = pair.high, low[2 * n + side] = pair.low;
            const int key = key_of(first_key, 2 * side), query = query_of(first, n, 0);
            const auto put = [&](const auto& to, uint32_t two) {
                to.value(query, key) = static_cast<uint16_t>(two);
                to.value(query + 1, key) = static_cast<uint16_t>(two >> 16);
            };
            put(shared.high, pair.high), put(shared.low, pair.low);
        }
    const bool sound = __all_sync(kAllLanes, finite) != 0;
    if (!sound) *shared.unsound = 1;
#pragma unroll
    for (int d = 0; d < kIndexDim / 8; d += 2) {
        uint32_t b[4];
        load_sound<T>(rows, first, 8 * d, sound, b);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            multiply_16x8<T>(sums[d + n], high, b + 2 * n);
            multiply_16x8<T>(sums[d + n], low, b + 2 * n);
        }
    }
}

/// Stores the tile's contribution to d_index_q to the slots; a warp takes 16 queries and 16
/// dimensions at a time.
template <typename Shared, int kIndexDim>
__device__ void store_d_query(const KlBlocks& a, const Shared& shared,
                              const typename Shared::Shape::Meta& meta,
                              const MmaTile<kIndexDim>& keys, int most_seen) {
    using T = typename Shared::Value;
    constexpr int kColumns = kIndexDim / 16, kUnits = Shared::kQueries / kStepQueries * kColumns;
    const bool sound = *shared.unsound == 0;
    for (int unit = warp_id(); unit < kUnits; unit += kWorkers) {
        const int first = unit / kColumns * kStepQueries, column = unit % kColumns * 16;
        float sums[2][4] = {};
        const auto query_at = [&](int e) { return first + lane_id() / 4 + 8 * (e / 2); };
        const auto column_at = [&](int n, int e) {
            return column + 8 * n + 2 * (lane_id() % 4) + e % 2;
        };
        for (int key = 0; key < most_seen; key += kStepKeys) {
            uint32_t high[4], low[4], b[4];
            shared.high.load_a(high, first, key);
            shared.low.load_a(low, first, key);
            load_sound<T>(keys, key, column, sound, b);
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                multiply_16x8<T>(sums[n], high, b + 2 * n);
                multiply_16x8<T>(sums[n], low, b + 2 * n);
            }
        }
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int query = query_at(2 * side);
            if (meta.query[query] < 0) continue;
#pragma unroll
            for (int n = 0; n < 2; ++n)
                *reinterpret_cast<float2*>(a.d_query + meta.slot[query] * kIndexDim +
                                           column_at(n, 0)) = {sums[n][2 * side],
                                                               sums[n][2 * side + 1]};
        }
    }
}

/// Stores the item's contribution to d_index_k. Warps that shared keys are added in order, through
/// the shared memory that the keys no longer need.
template <int kIndexDim, typename Shared>
__device__ void store_d_keys(const KlBlocks& a, const Shared& shared, const ScoreShare& share,
                             const KeySums<kIndexDim>& sums, float* to) {
    float* const others = reinterpret_cast<float*>(shared.keys.at);  // [parts][Bk][didx]
    const auto at = [&](int d, int e) {
        return key_of(share.first_key, e) * kIndexDim + query_of(8 * d, 0, e);
    };
    work_barrier();
    if (share.part > 0)
#pragma unroll
        for (int d = 0; d < kIndexDim / 8; ++d)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                others[(share.part - 1) * a.block_size * kIndexDim + at(d, e)] = sums[d][e];
    work_barrier();
    if (share.part > 0) return;
#pragma unroll
    for (int d = 0; d < kIndexDim / 8; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float sum = sums[d][e];
            for (int part = 1; part < share.parts; ++part)
                sum += others[(part - 1) * a.block_size * kIndexDim + at(d, e)];
            to[at(d, e)] = sum;
        }
}

}  // namespace msa::cuda
