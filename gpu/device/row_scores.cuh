// SPDX-License-Identifier: MIT
// How index_select's kernels add scores to the lists of rows, or write them, and turn lists into
// ids.
#pragma once

#include <type_traits>

#include "gpu/device/seen_keys.cuh"
#include "gpu/device/warp_top_k.cuh"
#include "gpu/kernels/index_select_sm90.h"

namespace msa::cuda {

/// The lists that the parts made for one row, and a copy of the score (ordered_key) of each list's
/// first candidate. Of one part there are none.
template <int Kept>
struct PartLists {
    int parts;
    uint64_t* lists;
    uint32_t* heads;
    __device__ PartLists(const IndexSelectArgs& args, QueryParts of, int group) {
        parts = of.parts;
        const int64_t before = int64_t{of.before} * args.groups + group * parts;
        lists = args.partial + before * (Kept + 1);
        heads = reinterpret_cast<uint32_t*>(lists + parts * Kept);
    }
    __device__ uint64_t* list(int part) const { return lists + int64_t{part} * Kept; }
};

/// The keys that a query sees, and its lists. If the device cut the tiles, the kernel that did must
/// be done, and they are read past L1, which may have older ones.
struct ListsOfQuery {
    int seen;
    QueryParts lists;
    __device__ ListsOfQuery(const IndexSelectArgs& args, int64_t query) {
        if (args.now.tiles == nullptr) {
            seen = seen_keys(args.visible, query);
            lists = args.of_query[query];
        } else {
            seen = __ldcg(args.now.seen + query);
            const int2 read = __ldcg(reinterpret_cast<const int2*>(args.now.of_query + query));
            lists = {read.x, read.y};
        }
    }
};

/// The arguments of scaled_score() for operands without scales.
struct OneScale {
    explicit __device__ OneScale(float one) : scale(one) {}
    float scale;
    __device__ float of_row(int) const { return scale; }
    __device__ float of_block(int) const { return 1; }
};

/// The rows and blocks of a tile; row_at(place) is a place's row.
template <typename RowAt>
struct RowsOfTile {
    const IndexSelectArgs& args;
    const QueryTile& tile;
    int rows, blocks;
    RowAt row_at;
    /// The place's row and the block, counted over all.
    __device__ int64_t row(int place) const {
        return tile.query * args.groups + min(row_at(place), rows - 1);
    }
    __device__ int64_t block(int id) const {
        return int64_t{tile.first_block} + max(0, min(id, blocks - 1));
    }
};
/// Scales of int8 operands.
template <typename RowAt>
struct TileScales : RowsOfTile<RowAt> {
    __device__ float of_row(int place) const {
        return this->args.scale * this->args.q_scales.at(this->row(place));
    }
    __device__ float of_block(int id) const { return this->args.k_scales.at(this->block(id)); }
};
/// The scales of operands of type T.
template <typename T, typename RowAt>
__device__ auto tile_scales(const IndexSelectArgs& args, const QueryTile& tile, int rows,
                            int blocks, RowAt row_at) {
    if constexpr (std::is_same_v<T, int8_t>)
        return TileScales<RowAt>{{args, tile, rows, blocks, row_at}};
    else
        return OneScale(args.scale);
}

/// Of this part's blocks [begin, end), at most 32, one a lane: the scores of `Places` rows of the
/// warp from `place` on, -inf of blocks that are no candidates. Returns the lane's id. `first`: id
/// of the part's block 0. `scales` has the scale of a place's row and of a block.
template <int Places, typename S, typename Scales>
__device__ int block_scores(S& shared, const DeviceRule& rule, const Scales& scales, int place,
                            int first, int begin, int end, float (&score)[Places]) {
    const int block = end - kWarp + static_cast<int>(threadIdx.x % kWarp), id = first + block;
    const bool counts = block >= begin && id >= rule.forced_first;
    const float of_block = scales.of_block(id);
#pragma unroll
    for (int n = 0; n < Places; ++n) {  // reads all scores unconditionally, so reads do not wait
        const float scaled = scaled_score(scales.of_row(place + n), of_block,
                                          shared.scores.at(place + n, block & (kWarp - 1)));
        score[n] = counts & (id < shared.limit[place + n]) ? scaled : -INFINITY;
    }
    return id;
}

/// Offers block_scores() to the rows' lists. Rows are processed together, since each waits for its
/// shuffles.
template <int Places, typename S, typename Scales>
__device__ void offer_scores(S& shared, const DeviceRule& rule, const Scales& scales, int place,
                             int first, int begin, int end) {
    float score[Places];
    const int id = block_scores(shared, rule, scales, place, first, begin, end, score);
    shared.lists.offer(place, score, id);
}

/// Writes block_scores() to args.scores.
template <int Places, typename S, typename Scales, typename RowAt>
__device__ void write_scores(const RowsOfTile<RowAt>& tile, S& shared, const Scales& scales,
                             int place, int first, int begin, int end) {
    float score[Places];
    const int id = block_scores(shared, tile.args.rule, scales, place, first, begin, end, score);
#pragma unroll
    for (int n = 0; n < Places; ++n)
        if (id >= first + begin && tile.row_at(place + n) < tile.rows)
            tile.args.scores.of_row(tile.row(place + n))[id] = score[n];
}

/// The lists of the first query of a tile that the host cut.
__device__ inline QueryParts first_lists(const IndexSelectArgs& args, const TilePart& of) {
    return of.parts > 1 ? args.of_query[of.tile.query] : QueryParts{0, 1};
}

/// Called by a warp: writes the lists of `count` places of a tile from `place` on, as ids or, if
/// the tile has several parts, as lists of this part; `first`: those of the tile's first query.
/// Takes AtOnce places at a time; row_at(place) is a place's row of the tile.
template <int Kept, int AtOnce, typename S, typename RowAt>
__device__ void write_lists(const IndexSelectArgs& args, S& shared, const TilePart& of,
                            QueryParts first, int place, int count, RowAt row_at) {
    const QueryTile& tile = of.tile;
    const DeviceRule& rule = args.rule;
    const int lane = threadIdx.x % kWarp, rows = tile.queries * args.groups;
    for (const int end = place + count; place < end; place += AtOnce) {
        if (row_at(place) >= rows) break;
        WarpTopK list[AtOnce];
        shared.lists.whole(place, list);
        int32_t id[AtOnce]{}, *ids[AtOnce]{};
#pragma unroll
        for (int n = 0; n < AtOnce && row_at(place + n) < rows; ++n) {
            const int row = row_at(place + n);
            const int64_t out_row = tile.query * args.groups + row;
            if (of.parts == 1) {
                ids[n] = args.ids + out_row * rule.top_k;
                id[n] =
                    unsorted_id(list[n], rule.top_k, shared.limit[place + n] + rule.forced_local,
                                rule.forced_first, rule.forced_local);
                continue;
            }
            const QueryParts lists{first.before + row / args.groups * of.parts, of.parts};
            const PartLists<Kept> to(args, lists, row % args.groups);
            if (lane < Kept) to.list(of.part)[lane] = list[n].key;
            if (lane == 0) to.heads[of.part] = static_cast<uint32_t>(list[n].key >> 32);
        }
        if (of.parts == 1) write_ids(id, rule.top_k, ids);
    }
}

}  // namespace msa::cuda
