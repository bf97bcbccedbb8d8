// SPDX-License-Identifier: MIT
// d_k and d_v of a tile of keys. A thread block keeps the keys and loops over their queries.
#pragma once

#include "gpu/device/attend_grad.cuh"
#include "gpu/query_tile.h"

namespace msa::cuda {

/// The queries of a group that may attend to a block, ascending.
struct BlockQueries {
    const int32_t* listed;  // those that selected it; absent: those of [first, first + count) whose
                            // ids contain it
    int64_t first, count;
    int64_t block, group;

    /// The n-th (query, head) of count * G. An absent row beyond them, and for a query that did not
    /// select the block.
    template <typename T>
    __device__ TileRow row(const BackwardInput<T>& b, int64_t n) const {
        const int64_t heads = b.heads.heads, use = n / heads;
        if (use >= count) return {};
        const int64_t query = listed != nullptr ? listed[use] : first + use;
        if (listed == nullptr && !selects(b.support, query)) return {};
        return tile_row(query, group * heads + n % heads, b.support.visible[query], kNoWindow);
    }

private:
    __device__ bool selects(const KeySupport& support, int64_t query) const {
        if (support.ids == nullptr) return true;
        const int32_t* const ids = support.ids + (query * support.kv_heads + group) * support.top_k;
        for (int64_t slot = 0; slot < support.top_k && ids[slot] != kNoBlock; ++slot)
            if (ids[slot] == block) return true;
        return false;
    }
};

/// Computes d_k and d_v of `keys`, a tile of one block.
template <typename T>
__device__ void key_gradient(const BackwardInput<T>& b, KeyRange keys, const BlockQueries& queries,
                             const Output& d_k, const Output& d_v, float* shared) {
    const Heads<T>& in = b.heads;
    const int stride = tile_stride(in.width), rows = block_rows(in.width);
    const auto [first_row, first_dim] = warp_place(in.width);
    const BackwardTiles tiles(rows, in.width);
    float *const k = shared + tiles.first, *const v = shared + tiles.second,
                 *const passing = shared + tiles.passing;
    const int64_t group = queries.group;
    __syncthreads();
    stage(k, rows, in.width,
          [&](int r) { return r < keys.count ? in.key(keys.first + r, group) : nullptr; });
    stage(v, rows, in.width,
          [&](int r) { return r < keys.count ? in.value(keys.first + r, group) : nullptr; });
    RowSums to_k{}, to_v{};
    const int64_t all = queries.count * in.heads;
    for (int64_t first = 0; first < all; first += kWarp) {
        const auto row_of = [&](int j) { return queries.row(b, first + j); };
        const TileRow mine = row_of(lane_id());
        const auto sees = [&](int r) { return r < keys.count && keys.first + r < mine.end; };
        if (!__any_sync(kAllLanes, mine.query >= 0 && sees(0))) continue;  // alike in all warps
        const float delta = b.delta_of(mine), lse = b.lse_of(mine, delta);
        float logit[kRowsPerWarp], weight[kRowsPerWarp], d_score[kRowsPerWarp];
        unsigned seen[kRowsPerWarp];
        const auto stage_queries = [&] {
            __syncthreads();
            stage(passing, kWarp, in.width, [&](int j) -> const T* {
                const TileRow row = row_of(j);
                return row.query < 0 ? nullptr : in.query(row.query, row.head);
            });
            __syncthreads();
        };
        stage_queries();
        dot_products(k + first_row * stride, passing, in.width, logit);
        __syncthreads();
        b.stage_d_out(passing, kWarp, row_of);
        __syncthreads();
        dot_products(v + first_row * stride, passing, in.width, d_score);
#pragma unroll
        for (int r = 0; r < kRowsPerWarp; ++r) {
            const bool here = mine.query >= 0 && sees(first_row + r);
            seen[r] = __ballot_sync(kAllLanes, here);
            weight[r] = here ? expf(in.scale * logit[r] - lse) : 0.0F;
            d_score[r] = here ? weight[r] * (d_score[r] - delta) : 0.0F;
        }
        add_weighted(weight, seen, passing, in.width, first_dim, to_v);
        stage_queries();
        add_weighted(d_score, seen, passing, in.width, first_dim, to_k);
    }
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
        if (first_row + r >= keys.count) continue;
        const int64_t at = (keys.first + first_row + r) * b.support.kv_heads + group;
        store_sums(to_k[r], in.scale, in.width, first_dim, at, d_k);
        store_sums(to_v[r], 1, in.width, first_dim, at, d_v);
    }
}

/// The n-th tile of a block's keys, `rows` of them.
__device__ inline KeyRange key_tile(const SequenceBlock& block, int64_t n, int64_t rows) {
    const int64_t first = n * rows;
    return {block.key + first, max(int64_t{0}, min(rows, block.keys - first))};
}

}  // namespace msa::cuda
