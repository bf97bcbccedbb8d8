// SPDX-License-Identifier: MIT
// Softmax attention of a tile of rows over spans of keys, with an online softmax. The rows and
// spans given to it make it dense_attention, sparse_attention in either order, or the normalisers
// of index_kl.
#pragma once

#include "gpu/device/early.cuh"
#include "gpu/device/heads.cuh"
#include "gpu/runtime.h"

namespace msa::cuda {

/// The warp's rows after attend(): its dimension lane + 32 i of row r, not yet divided by the sum.
struct Attended {
    OnlineSum softmax[kRowsPerWarp];
    float sums[kRowsPerWarp][kDimsPerLane] = {};
};

/// Attends with the block's rows, row_of(0...), to the keys of span_of(0 ... spans - 1), KeyRanges
/// of packed tokens. Windows begin in the order of the rows. `shared` holds RowsAndKeys.
template <typename T, typename RowOf, typename SpanOf>
__device__ void attend(const Heads<T>& in, int64_t group, RowOf row_of, int64_t spans,
                       SpanOf span_of, float* shared, Attended& state) {
    const int stride = tile_stride(in.width);
    const auto [first_row, first_dim] = warp_place(in.width);
    const RowsAndKeys tiles(block_rows(in.width), in.width);
    float *const staged = shared + tiles.rows, *const keys = shared + tiles.keys;
    stage_rows(in, row_of, staged);
    int64_t begin[kRowsPerWarp], end[kRowsPerWarp];
    for (int r = 0; r < kRowsPerWarp; ++r) {
        begin[r] = row_of(first_row + r).begin;
        end[r] = row_of(first_row + r).end;
    }
    const int64_t first_begin = row_of(0).begin;

    for (int64_t s = 0; s < spans; ++s) {
        const KeyRange span = span_of(s);
        const int64_t span_end = span.first + span.count;
        for (int64_t first = max(span.first, first_begin); first < span_end;
             first += kPlainTileKeys) {
            __syncthreads();
            stage_keys(in, in.k, in.scales.k, group, {first, span_end - first}, keys);
            __syncthreads();
            float weight[kRowsPerWarp];
            dot_products(staged + first_row * stride, keys, in.width, weight);
            int hidden[kRowsPerWarp], seen[kRowsPerWarp];
#pragma unroll
            for (int r = 0; r < kRowsPerWarp; ++r) {
                hidden[r] = keys_before(begin[r], first);
                seen[r] = keys_before(min(end[r], span_end), first);
                if (hidden[r] >= seen[r]) continue;
                const SoftmaxStep step =
                    softmax_step(in.logit(weight[r]), seen[r], state.softmax[r], hidden[r]);
                weight[r] = step.weight;
                for (float& sum : state.sums[r]) sum *= step.factor;
            }
            if (in.v.absent()) continue;
            __syncthreads();
            stage_keys(in, in.v, in.scales.v, group, {first, span_end - first}, keys);
            __syncthreads();
            for (int j = 0; j < kPlainTileKeys; ++j) {
                float value[kDimsPerLane];
#pragma unroll
                for (int i = 0; i < kDimsPerLane; ++i) {
                    const int d = first_dim + lane_id() + i * kWarp;
                    value[i] = d < in.width ? keys[j * stride + d] : 0.0F;
                }
#pragma unroll
                for (int r = 0; r < kRowsPerWarp; ++r) {
                    const float w = __shfl_sync(kAllLanes, weight[r], j);
                    if (j < hidden[r] || j >= seen[r]) continue;  // the value may be NaN
#pragma unroll
                    for (int i = 0; i < kDimsPerLane; ++i) state.sums[r][i] += w * value[i];
                }
            }
        }
    }
}

/// Stores the warp's rows to out [Nq, heads, width], unless absent, and lse [Nq, heads]. A row that
/// saw no key gets 0 and -inf. place(row, r) is the index of the warp's row r there.
template <typename RowOf, typename Place>
__device__ void finish_rows(const Attended& state, RowOf row_of, int width, Place place,
                            const Output& out, float* lse) {
    const auto [first_row, first_dim] = warp_place(width);
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
        const TileRow row = row_of(first_row + r);
        if (row.query < 0) continue;
        const int64_t at = place(row, r);
        const float weight = state.softmax[r].sum == 0 ? 0.0F : 1 / state.softmax[r].sum;
#pragma unroll
        for (int i = 0; i < kDimsPerLane; ++i)
            if (const int d = first_dim + lane_id() + i * kWarp; out.data != nullptr && d < width)
                out.store(at * width + d, weight * state.sums[r][i]);
        if (first_dim == 0 && lane_id() == 0) lse[at] = state.softmax[r].lse();
    }
}

/// Launches a kernel of attention with thread blocks of `warps` warps. `early`: see
/// launch_early_if().
template <typename... Parameters, typename... Arguments>
void launch_attend_if(bool early, const Call& call, void (*kernel)(Parameters...), dim3 grid,
                      int warps, int width, Arguments... arguments) {
    if (grid.x == 0) return;
    const int bytes = RowsAndKeys(rows_of_warps(warps, width), width).stack.bytes();
    allow_shared(kernel, bytes);
    check(launch_early_if<Parameters...>(early, kernel, grid, warps * kWarp,
                                         static_cast<size_t>(bytes), call.stream(), arguments...),
          "launching a kernel of attention");
}
template <typename... Parameters, typename... Arguments>
void launch_attend(const Call& call, void (*kernel)(Parameters...), dim3 grid, int warps, int width,
                   Arguments... arguments) {
    launch_attend_if(false, call, kernel, grid, warps, width, arguments...);
}

}  // namespace msa::cuda
