// SPDX-License-Identifier: MIT
// The operands of an operation by head, and how queries and heads are cut into tiles.
#pragma once

#include <algorithm>
#include <type_traits>

#include "core/backend.h"
#include "gpu/device/key_rows.cuh"
#include "gpu/device/tile.cuh"
#include "gpu/layout.h"
#include "gpu/operand_scales.h"

namespace msa::cuda {

/// A row of a tile: a (query, head) that attends to the packed keys [begin, end). Query -1: the row
/// is absent.
struct TileRow {
    int64_t query = -1;
    int64_t head = 0;
    int64_t begin = 0, end = 0;
};

/// The row of a query that causally sees `visible`.
__device__ inline TileRow tile_row(int64_t query, int64_t head, KeyRange visible, int64_t window) {
    return {query, head, visible.first + window_start(visible.count, window),
            visible.first + visible.count};
}

/// Operands of one kind of head.
template <typename T>
struct Heads {
    const T* q;         // [Nq, row_heads, width]
    KeyRows<T> k, v;    // v absent: the normaliser alone
    int64_t row_heads;  // heads in a row of q
    int64_t heads;      // of one group
    int width;
    float scale;
    float cap = 0;                // a logit is cap * tanh(scale * q . k / cap); 0: scale * q . k
    int64_t window = kNoWindow;   // as in Problem
    AttentionScales scales = {};  // of e4m3, applied to operands; of int8, applied to scores

    __device__ float logit(float product) const {
        const float plain = scale * product;
        return cap == 0 ? plain : cap * tanhf(plain / cap);
    }
    static constexpr bool kScaled = std::is_same_v<T, __nv_fp8_e4m3>;
    __device__ float query_scale(const TileRow& row) const {
        return kScaled ? scales.q.at(number(row)) : 1.0F;
    }
    /// The row of the scales of k or v that a token of `rows` has: its block's, or its page's.
    __device__ int64_t scale_row(const KeyRows<T>& rows, int64_t token) const {
        return rows.paged() ? max(int64_t{0}, rows.page_of(token)) : scales.block_of(token);
    }
    /// The row's number in [Nq, row_heads].
    __device__ int64_t number(const TileRow& row) const { return row.query * row_heads + row.head; }
    __device__ const T* query(int64_t row, int64_t head) const {
        return q + (row * row_heads + head) * width;
    }
    __device__ const T* key(int64_t token, int64_t group) const { return k.at(token, group); }
    __device__ const T* value(int64_t token, int64_t group) const { return v.at(token, group); }
};

/// `layout` is that of the whole problem, of which p and q may have a part of the queries. It may
/// be null where keys are packed.
template <typename T>
Heads<T> main_heads(const Problem& p, const Layout* layout, In<3> q, const Keys<3>& k,
                    const Keys<3>& v) {
    return {static_cast<const T*>(q.data()),
            {k, layout},
            {v, layout},
            p.query_heads,
            p.group_size(),
            static_cast<int>(p.head_dim),
            static_cast<float>(p.softmax_scale()),
            static_cast<float>(p.softcap.value_or(0)),
            p.window.value_or(kNoWindow)};
}

/// The Heads of sparse_attention, whose operands may have scales; `layout` as above.
template <typename T>
Heads<T> sparse_heads(const Problem& p, const Layout* layout, const AttentionInput& in) {
    Heads<T> all = main_heads<T>(p, layout, in.q, in.k, in.v);
    if (!in.scales) return all;
    const Tensor<SequenceBlock, 1>& blocks = layout->key_blocks();
    all.scales = {DeviceScales(in.scales.q), DeviceScales(in.scales.k), DeviceScales(in.scales.v),
                  blocks.data(), blocks.size()};
    return all;
}

/// The Heads of the Index Branch: one per group. index_k is shared by the groups.
template <typename T>
Heads<T> index_heads(const Problem& p, const Layout* layout, const IndexInput& in) {
    return {static_cast<const T*>(in.index_q.data()),
            {in.index_k, layout},
            {},
            p.kv_heads,
            1,
            static_cast<int>(p.index_dim),
            static_cast<float>(p.index_scale())};
}

/// The same for index scores, whose operands may have scales.
template <typename T>
Heads<T> score_heads(const Problem& p, const Layout* layout, const IndexInput& in) {
    Heads<T> all = index_heads<T>(p, layout, in);
    if (!in.scales) return all;
    const Tensor<SequenceBlock, 1>& blocks = layout->key_blocks();
    all.scales = {
        DeviceScales(in.scales.q), DeviceScales(in.scales.k), {}, blocks.data(), blocks.size()};
    return all;
}

/// Fills the block's rows with the queries of row_of(0...).
template <typename T, typename RowOf>
__device__ void stage_rows(const Heads<T>& in, RowOf row_of, float* rows) {
    stage(
        rows, block_rows(in.width), in.width,
        [&](int r) -> const T* {
            const TileRow row = row_of(r);
            return row.query < 0 ? nullptr : in.query(row.query, row.head);
        },
        [&](int r) { return in.query_scale(row_of(r)); });
}

/// Fills a tile with the first keys, or values, of a range of tokens.
template <typename T>
__device__ void stage_keys(const Heads<T>& in, const KeyRows<T>& rows, const DeviceScales& scales,
                           int64_t group, KeyRange range, float* tile) {
    stage(
        tile, kPlainTileKeys, in.width,
        [&](int j) { return j < range.count ? rows.at(range.first + j, group) : nullptr; },
        [&](int j) {
            if (!Heads<T>::kScaled) return 1.0F;
            return scales.at(in.scale_row(rows, range.first + j) * (in.row_heads / in.heads) +
                             group);
        });
}

/// Tiles of (query, head) rows of one group. A tile has whole queries if their heads fit, otherwise
/// a part of the heads of one query.
struct HeadTiling {
    int heads;    // of one query, in a tile
    int parts;    // number of tiles for all heads of a query and group
    int queries;  // of a tile
    int width;    // channels of a row

    constexpr int warps() const { return tile_warps(heads * queries, width); }
    /// Row r of the tile of the queries `range` and part `part` of the group's heads.
    __device__ TileRow row(int r, QueryRange range, int64_t group, int64_t part,
                           int64_t group_heads, const KeyRange* visible,
                           int64_t window = kNoWindow) const {
        const int64_t query = range.begin + r / heads, head = part * heads + r % heads;
        if (query >= range.end || head >= group_heads) return {};
        return tile_row(query, group * group_heads + head, visible[query], window);
    }
};

/// For groups of `group_heads` heads of `width` channels and a problem of `max_queries`.
inline HeadTiling tile_heads(int64_t group_heads, int64_t max_queries, int64_t width) {
    const int64_t rows = tile_rows(width), heads = std::min(group_heads, rows);
    const int64_t queries = std::clamp<int64_t>(max_queries, 1, rows / heads);
    return {static_cast<int>(heads), static_cast<int>(ceil_div(group_heads, heads)),
            static_cast<int>(queries), static_cast<int>(width)};
}

}  // namespace msa::cuda
