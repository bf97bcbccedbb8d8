// SPDX-License-Identifier: MIT
// The gradient of softmax attention, tile by tile, from the saved log-sum-exp. With
//   P = exp(scale q.k - lse)   dS = P (d_out.v - delta)   delta = out.d_out
// a query's d_q is scale sum dS k over its keys, and a key's d_k and d_v are scale sum dS q and
// sum P d_out over the queries that see it. The rows and keys given to it make it the gradient of
// dense_attention or of sparse_attention.
#pragma once

#include "gpu/device/support.cuh"

namespace msa::cuda {

/// The operands of both the pass by query and the pass by key.
template <typename T>
struct BackwardInput {
    Heads<T> heads;
    KeySupport support;
    Operand d_out;             // [Nq, Hq, dh]
    const float *lse, *delta;  // [Nq, Hq]
    const int32_t* only_if;    // if *only_if is 0, the kernel does nothing; absent: always runs

    __device__ bool is_off() const { return only_if != nullptr && *only_if == 0; }
    __device__ float delta_of(const TileRow& row) const {
        return row.query < 0 ? 0 : delta[heads.number(row)];
    }
    /// NaN if delta is: then the row's whole contribution is NaN.
    __device__ float lse_of(const TileRow& row, float delta_of_row) const {
        if (row.query < 0) return 0;
        return isnan(delta_of_row) ? delta_of_row : lse[heads.number(row)];
    }
    /// Fills absent rows (query -1) with zeros.
    template <typename RowOf>
    __device__ void stage_d_out(float* tile, int rows, RowOf row_of) const {
        const int stride = tile_stride(heads.width), warps = static_cast<int>(blockDim.x) / kWarp;
        for (int r = warp_id(); r < rows; r += warps) {
            const TileRow row = row_of(r);
            const int64_t from = heads.number(row) * heads.width;
            for (int d = lane_id(); d < stride; d += kWarp)
                tile[r * stride + d] = row.query >= 0 && d < heads.width ? d_out.at(from + d) : 0;
        }
    }
};

/// Shared memory: two tiles that stay for the whole pass, and 32 rows at a time of the other side.
struct BackwardTiles {
    TileStack stack;
    int first, second, passing;

    constexpr BackwardTiles(int rows, int width)
        : first(stack.push(rows, width)),
          second(stack.push(rows, width)),
          passing(stack.push(kPlainTileKeys, width)) {}
};

/// For each of the warp's rows, its dimension lane + 32 i of a sum.
using RowSums = float[kRowsPerWarp][kDimsPerLane];

/// sums[r] += the r-th weight of lane j times row j of the tile, for the bits j set in seen[r].
/// Rows that are not seen are skipped, because they may be NaN.
__device__ inline void add_weighted(const float (&weight)[kRowsPerWarp],
                                    const unsigned (&seen)[kRowsPerWarp], const float* tile,
                                    int width, int first_dim, RowSums& sums) {
    const int stride = tile_stride(width);
    for (int j = 0; j < kWarp; ++j) {
        float value[kDimsPerLane];
#pragma unroll
        for (int i = 0; i < kDimsPerLane; ++i) {
            const int d = first_dim + lane_id() + i * kWarp;
            value[i] = d < width ? tile[j * stride + d] : 0.0F;
        }
#pragma unroll
        for (int r = 0; r < kRowsPerWarp; ++r) {
            const float w = __shfl_sync(kAllLanes, weight[r], j);
            if ((seen[r] >> j & 1) == 0) continue;
#pragma unroll
            for (int i = 0; i < kDimsPerLane; ++i) sums[r][i] += w * value[i];
        }
    }
}

__device__ inline void store_sums(const float (&sums)[kDimsPerLane], float factor, int width,
                                  int first_dim, int64_t at, const Output& to) {
#pragma unroll
    for (int i = 0; i < kDimsPerLane; ++i)
        if (const int d = first_dim + lane_id() + i * kWarp; d < width)
            to.store(at * width + d, factor * sums[i]);
}

/// d_q of the block's rows, row_of(0...), whose keys are those of span_of(0 ... spans - 1).
template <typename T, typename RowOf, typename SpanOf>
__device__ void query_gradient(const BackwardInput<T>& b, int64_t group, RowOf row_of,
                               int64_t spans, SpanOf span_of, const Output& d_q, float* shared) {
    const Heads<T>& in = b.heads;
    const int stride = tile_stride(in.width), rows = block_rows(in.width);
    const auto [first_row, first_dim] = warp_place(in.width);
    const BackwardTiles tiles(rows, in.width);
    float *const q = shared + tiles.first, *const d_out = shared + tiles.second,
                 *const keys = shared + tiles.passing;
    stage_rows(in, row_of, q);
    b.stage_d_out(d_out, rows, row_of);
    TileRow row[kRowsPerWarp];
    float lse[kRowsPerWarp], delta[kRowsPerWarp];
    for (int r = 0; r < kRowsPerWarp; ++r) {
        row[r] = row_of(first_row + r);
        delta[r] = b.delta_of(row[r]);
        lse[r] = b.lse_of(row[r], delta[r]);
    }
    RowSums sums{};
    for (int64_t s = 0; s < spans; ++s) {
        const KeyRange span = span_of(s);
        const int64_t span_end = span.first + span.count;
        for (int64_t first = span.first; first < span_end; first += kPlainTileKeys) {
            float logit[kRowsPerWarp], d_weight[kRowsPerWarp], d_score[kRowsPerWarp];
            __syncthreads();
            stage(keys, kPlainTileKeys, in.width, [&](int j) {
                return first + j < span_end ? in.value(first + j, group) : nullptr;
            });
            __syncthreads();
            dot_products(d_out + first_row * stride, keys, in.width, d_weight);
            __syncthreads();
            stage(keys, kPlainTileKeys, in.width,
                  [&](int j) { return first + j < span_end ? in.key(first + j, group) : nullptr; });
            __syncthreads();
            dot_products(q + first_row * stride, keys, in.width, logit);
            unsigned seen[kRowsPerWarp];
#pragma unroll
            for (int r = 0; r < kRowsPerWarp; ++r) {
                const bool mine = lane_id() < keys_before(min(row[r].end, span_end), first);
                seen[r] = __ballot_sync(kAllLanes, mine);
                d_score[r] =
                    mine ? expf(in.scale * logit[r] - lse[r]) * (d_weight[r] - delta[r]) : 0.0F;
            }
            add_weighted(d_score, seen, keys, in.width, first_dim, sums);
        }
    }
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r)
        if (row[r].query >= 0)
            store_sums(sums[r], in.scale, in.width, first_dim, in.number(row[r]), d_q);
}

/// Launches a kernel of the gradient with thread blocks of `warps` warps.
template <typename... Parameters, typename... Arguments>
void launch_backward(const Call& call, void (*kernel)(Parameters...), dim3 grid, int warps,
                     Arguments... arguments) {
    if (grid.x == 0) return;
    const int width = static_cast<int>(call.problem.head_dim);
    const int bytes = BackwardTiles(rows_of_warps(warps, width), width).stack.bytes();
    allow_shared(kernel, bytes);
    kernel<<<grid, static_cast<unsigned>(warps * kWarp), static_cast<size_t>(bytes),
             call.stream()>>>(arguments...);
}

}  // namespace msa::cuda
