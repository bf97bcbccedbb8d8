// SPDX-License-Identifier: MIT
// Softmax attention of a tile of rows over spans of keys, online. Which rows and which spans makes
// it dense_attention, sparse_attention in either order, or the normalisers of index_kl.
#pragma once

#include <algorithm>

#include "core/backend.h"
#include "gpu/device/tile.cuh"
#include "gpu/runtime.h"

namespace msa::cuda {

/// Operands of one kind of head: keys and values of a group stand `group_stride` apart, those of
/// neighbouring tokens `token_stride`.
template <typename T>
struct Heads {
    const T *q, *k, *v;  // q [Nq, row_heads, width]; v null: the normaliser alone
    int64_t row_heads;   // heads in a row of q
    int64_t heads;       // of one group
    int64_t token_stride, group_stride;
    int width;
    float scale;

    __device__ const T* query(int64_t row, int64_t head) const {
        return q + (row * row_heads + head) * width;
    }
    __device__ const T* key(int64_t token, int64_t group) const {
        return k + token * token_stride + group * group_stride;
    }
    __device__ const T* value(int64_t token, int64_t group) const {
        return v + token * token_stride + group * group_stride;
    }
};

template <typename T>
Heads<T> main_heads(const Problem& p, In<3> q, In<3> k, In<3> v) {
    return {static_cast<const T*>(q.data()),
            static_cast<const T*>(k.data()),
            static_cast<const T*>(v.data()),
            p.query_heads,
            p.group_size(),
            p.kv_heads * p.head_dim,
            p.head_dim,
            static_cast<int>(p.head_dim),
            static_cast<float>(p.main_scale())};
}

/// One index head per group; index_k is shared by the groups.
template <typename T>
Heads<T> index_heads(const Problem& p, const IndexInput& in) {
    return {static_cast<const T*>(in.index_q.data()),
            static_cast<const T*>(in.index_k.data()),
            nullptr,
            p.kv_heads,
            1,
            p.index_dim,
            0,
            static_cast<int>(p.index_dim),
            static_cast<float>(p.score_scale())};
}

/// A row of a tile: it sees the keys before `end` (packed). No row: query -1.
struct TileRow {
    int64_t query = -1;
    int64_t head = 0;
    int64_t end = 0;
};

/// The warp's rows after attend(): dimension lane + 32 i of row r, not yet divided by the sum.
struct Attended {
    OnlineSum softmax[kRowsPerWarp];
    float sums[kRowsPerWarp][kDimsPerLane] = {};
};

/// Shared memory of attend() with `warps` warps.
constexpr int attend_bytes(int warps, int width) {
    return tile_bytes(warps * kRowsPerWarp + kTileKeys, width);
}

/// Fills the block's rows with the queries of row_of(0...).
template <typename T, typename RowOf>
__device__ void stage_rows(const Heads<T>& in, RowOf row_of, float* rows) {
    const int count = static_cast<int>(blockDim.x) / kWarp * kRowsPerWarp;
    stage(rows, count, in.width, [&](int r) -> const T* {
        const TileRow row = row_of(r);
        return row.query < 0 ? nullptr : in.query(row.query, row.head);
    });
}

/// Attends with the block's rows, row_of(0...), to the keys of span_of(0 ... spans - 1), KeyRanges
/// of packed tokens. `shared` holds attend_bytes.
template <typename T, typename RowOf, typename SpanOf>
__device__ void attend(const Heads<T>& in, int64_t group, RowOf row_of, int64_t spans,
                       SpanOf span_of, float* shared, Attended& state) {
    const int stride = tile_stride(in.width), first_row = warp_id() * kRowsPerWarp;
    const int rows = static_cast<int>(blockDim.x) / kWarp * kRowsPerWarp;
    float* keys = shared + rows * stride;
    stage_rows(in, row_of, shared);
    int64_t end[kRowsPerWarp];
    for (int r = 0; r < kRowsPerWarp; ++r) end[r] = row_of(first_row + r).end;

    for (int64_t s = 0; s < spans; ++s) {
        const KeyRange span = span_of(s);
        const int64_t span_end = span.first + span.count;
        for (int64_t first = span.first; first < span_end; first += kTileKeys) {
            __syncthreads();
            stage(keys, kTileKeys, in.width,
                  [&](int j) { return first + j < span_end ? in.key(first + j, group) : nullptr; });
            __syncthreads();
            float weight[kRowsPerWarp];
            dot_products(shared + first_row * stride, keys, in.width, weight);
            int seen[kRowsPerWarp];
#pragma unroll
            for (int r = 0; r < kRowsPerWarp; ++r) {
                seen[r] = keys_before(min(end[r], span_end), first);
                if (seen[r] == 0) continue;
                const SoftmaxStep step =
                    softmax_step(in.scale * weight[r], seen[r], state.softmax[r]);
                weight[r] = step.weight;
                for (float& sum : state.sums[r]) sum *= step.factor;
            }
            if (in.v == nullptr) continue;
            __syncthreads();
            stage(keys, kTileKeys, in.width, [&](int j) {
                return first + j < span_end ? in.value(first + j, group) : nullptr;
            });
            __syncthreads();
            for (int j = 0; j < kTileKeys; ++j)
#pragma unroll
                for (int r = 0; r < kRowsPerWarp; ++r) {
                    const float w = __shfl_sync(kAllLanes, weight[r], j);
                    if (j >= seen[r]) continue;  // the value may be NaN
#pragma unroll
                    for (int i = 0; i < kDimsPerLane; ++i)
                        if (const int d = lane_id() + i * kWarp; d < in.width)
                            state.sums[r][i] += w * keys[j * stride + d];
                }
        }
    }
}

/// The warp's rows to out [Nq, heads, width], unless absent, and lse [Nq, heads]; nothing seen: 0
/// and -inf. place(row, r) gives the number there of the
/// warp's row r.
template <typename RowOf, typename Place>
__device__ void finish_rows(const Attended& state, RowOf row_of, int width, Place place,
                            const Output& out, float* lse) {
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
        const TileRow row = row_of(warp_id() * kRowsPerWarp + r);
        if (row.query < 0) continue;
        const int64_t at = place(row, r);
        const float weight = state.softmax[r].sum == 0 ? 0.0F : 1 / state.softmax[r].sum;
#pragma unroll
        for (int i = 0; i < kDimsPerLane; ++i)
            if (const int d = lane_id() + i * kWarp; out.data != nullptr && d < width)
                out.store(at * width + d, weight * state.sums[r][i]);
        if (lane_id() == 0) lse[at] = state.softmax[r].lse();
    }
}

/// Tiles of (query, head) rows of one group: whole queries where their heads fit, else one query
/// and a part of its heads.
struct HeadTiling {
    int heads;    // of one query in a tile
    int parts;    // tiles that the heads of a query's group are spread over
    int queries;  // of a tile

    constexpr int warps() const { return tile_warps(heads * queries); }
    /// Row r of the tile of `queries` and the part-th heads of the group.
    __device__ TileRow row(int r, QueryRange range, int64_t group, int64_t part,
                           int64_t group_heads, const KeyRange* visible) const {
        const int64_t query = range.begin + r / heads, head = part * heads + r % heads;
        if (query >= range.end || head >= group_heads) return {};
        return {query, group * group_heads + head, visible[query].first + visible[query].count};
    }
};

/// For groups of `group_heads` and a problem of `max_queries`.
inline HeadTiling tile_heads(int64_t group_heads, int64_t max_queries) {
    const int64_t heads = std::min<int64_t>(group_heads, kTileRows);
    const int64_t queries = std::clamp<int64_t>(max_queries, 1, kTileRows / heads);
    return {static_cast<int>(heads), static_cast<int>(ceil_div(group_heads, heads)),
            static_cast<int>(queries)};
}

/// Launches a kernel that attends with `warps` warps to a block.
template <typename... Parameters, typename... Arguments>
void launch_attend(const Call& call, void (*kernel)(Parameters...), dim3 grid, int warps, int width,
                   Arguments... arguments) {
    if (grid.x == 0) return;
    const int bytes = attend_bytes(warps, width);
    allow_shared(kernel, bytes);
    kernel<<<grid, warps * kWarp, bytes, call.stream()>>>(arguments...);
}

}  // namespace msa::cuda
