// SPDX-License-Identifier: MIT
// A warp's rows of a tile of gpu/kernels/sparse_attention_union_sm80.cu, before and after its
// union.
#pragma once

#include "gpu/device/attend_mma.cuh"
#include "gpu/device/attend_rows.cuh"
#include "gpu/kernels/sparse_attention_sm80.h"

namespace msa::cuda {

constexpr int kUnionWarps = kSparseTileRows / 16;  // that multiply

/// A (tile, group) pair.
struct UnionTask {
    int tile, group, steps;           // steps: stages of the union, or kNoTask
    int visible[kSparseTileQueries];  // of the queries
};

/// Adds the slots of one of this thread's rows, of a tile and group, to its softmax state (best,
/// total), base 2.
template <typename T, int Dim>
__device__ void add_slots(const SparseTilesArgs& args, int tile_index, int group, int query,
                          int row, int side, float (&out)[Dim / 2], float& best, float& total) {
    constexpr int kChunks = Dim / 32;
    const int count = __popc(args.workspace.in_slots[args.row(tile_index, query, group)]);
    if (count == 0) return;
    const int first = args.slot_row(tile_index, group, 0) + row;
    const auto* const slots = static_cast<const uint4*>(args.workspace.partial_out);
    uint4 chunk[kChunks];
    float lse = 0;
    const auto read = [&](int n) {
        const int at = first + n * args.slot_rows();
        lse = __ldcs(args.workspace.partial_lse + at);
#pragma unroll
        for (int i = 0; i < kChunks; ++i) chunk[i] = __ldcs(slots + slot_chunk<Dim>(at, i));
    };
    read(0);
    for (int n = 0; n < count; ++n) {
        uint4 mine[kChunks];
#pragma unroll
        for (int i = 0; i < kChunks; ++i) mine[i] = chunk[i];
        const float theirs = lse;
        if (n + 1 < count) read(n + 1);
        const float most = fmaxf(best, theirs);
        const float factor = exp2_fast(best - most), weight = exp2_fast(theirs - most);
        best = most;
        total = fmaf(total, factor, weight);
#pragma unroll
        for (int j = 0; j < Dim / 8; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i) out[4 * j + 2 * side + i] *= factor;
#pragma unroll
        for (int i = 0; i < kChunks; ++i) add_chunk<T>(out, side, i, mine[i], weight);
    }
}

/// The tiles of a round. Group major, so that tiles that run together share keys.
struct RoundTiles {
    int first, count;

    __device__ explicit RoundTiles(const SparseTilesArgs& args) {
        const SparseRound& round = args.workspace.rounds[args.round];
        first = round.first_chunk * args.chunk_tiles;
        count = min(round.chunks * args.chunk_tiles, args.tile_count - first);
    }
    __device__ int tile(int index) const { return first + index % count; }
    __device__ int group(int index) const { return index / count; }
};

/// The two rows of a thread after the union: their slots, and the result. What it needs of the task
/// is read anew, out of the way of the registers of the products.
template <typename T, int Dim>
__device__ void finish_rows(const SparseTilesArgs& args, const UnionTask& task,
                            float (&out)[Dim / 2], const RunningSoftmax<T>& softmax) {
    const int thread = opaque_thread(), lane = thread % kWarp, heads = args.group_size();
    const int row = thread / kWarp * 16 + lane / 4, group = task.group;
    const int64_t first_query = args.tiles[task.tile].query;
    const int queries = args.tiles[task.tile].queries;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        const int r = row + 8 * side, query = r / heads;
        float total = softmax.sum[side];
        total += __shfl_xor_sync(kAllLanes, total, 1);
        total += __shfl_xor_sync(kAllLanes, total, 2);
        float best = best_of(softmax, side, args.scale * kLog2E);
        const bool wanted = query < queries;  // not of an empty row
        if (args.any_slots() && wanted)
            add_slots<Stored<T>, Dim>(args, task.tile, group, query, r, side, out, best, total);
        __syncwarp();
        const bool any = total != 0;  // NaN alone leaves no best score, but a total
        const float by = any ? 1 / total : 0;
        const int64_t at = first_query + query;
        if (wanted && has_nan(out, side, by)) args.marked[at * args.groups + group] = 1;
        const int64_t out_row = at * args.query_heads + group * heads + r % heads;
        store_row<Stored<T>>(out, side, by, wanted,
                             static_cast<uint16_t*>(args.out) + out_row * Dim);
        if (wanted && lane % 4 == 0)
            args.lse[out_row] = any ? (best + log2f(total)) * kLn2 : -INFINITY;
    }
}

/// The warp's rows of a tile; empty rows are zeros. Returns their scales, of empty rows any.
template <typename T, int Width>
__device__ RowScales<T> load_queries(const SparseTilesArgs& args, const UnionTask& task,
                                     WordRows<Width, 1>& q) {
    const int thread = opaque_thread(), heads = args.group_size();
    const QueryTile tile = args.tiles[task.tile];
    const int first = thread / kWarp * 16 + thread % kWarp / 4;
    const auto at = [&](int row) {
        return (tile.query + row / heads) * args.query_heads + task.group * heads + row % heads;
    };
    const int rows = tile.queries * heads;
    q.load([&](int, int side) {
        const int row = first + 8 * side;
        return row < rows ? static_cast<const uint16_t*>(args.q) + at(row) * Width : nullptr;
    });
    return {args.scale * kLog2E, args.scales, at(min(first, rows - 1)),
            at(min(first + 8, rows - 1))};
}

}  // namespace msa::cuda
