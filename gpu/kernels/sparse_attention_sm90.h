// SPDX-License-Identifier: MIT
// sparse_attention (eq:msa-sparse-attn) on Hopper. Two ways; gpu/plan/sparse_attention.cpp chooses.
//
// Split-K decode, for few queries: sparse_attention_decode_sm90.h.
//
// Tiles, for many queries. A tile is 128 rows: the G heads of 128 / G, at most 32, consecutive
// queries of one group; rows left over are empty, their results never stored. Blocks that at least
// `least_sharing` queries of a tile selected are walked by the tile as a union, output in
// registers. The other (query, block) pairs go KV-outer (sec:kernel:sparse_attn) before it: each
// block gathers its queries, and partial outputs go to slots, which the tiles add to what their
// unions give. All is in the order `union` with least_sharing 1, KV-outer with tile_queries + 1.
//
// A chunk is as many tiles as slots are there for, should all their pairs go KV-outer. How many do
// is known on the device alone: a round is as many neighbouring chunks as the slots they ask for
// fit. KV-outer and tiles take rounds one after the other; there may be as many as chunks, or one.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/kernel_sizes.h"
#include "core/problem.h"
#include "gpu/kernels/sparse_attention_workspace.h"
#include "gpu/operand_scales.h"
#include "gpu/query_tile.h"

namespace msa::cuda {

constexpr int kSparseMostHeads = 64;  // G, but for decode
constexpr int kSlotRun = 8;           // rows of a slot that are read at once

/// What every kernel here needs to know of a call.
struct SparseCall {
    const int32_t* ids;                                    // [Nq, Hkv, top_k]
    const KeyRange* visible;                               // [Nq]
    int64_t queries;                                       // Nq
    int query_heads, groups, head_dim, block_size, top_k;  // Hq, Hkv, dh, Bk; k <= 32
    AttentionScales scales;        // of e4m3: rows [Nq, Hq], blocks [blocks of all sequences, Hkv]
    const char* values = nullptr;  // of e4m3, but for decode: from launch_transpose_values_sm90()

    __host__ __device__ int group_size() const { return query_heads / groups; }
};

/// How the tiles of a call are cut, and what goes where.
struct SparseSchedule : SparseCall {
    const QueryTile* tiles;       // at most tile_queries queries each
    int tile_queries;             // tile_queries_of(G)
    int tile_count, chunk_tiles;  // of all chunks, of each but the last
    int all_blocks;               // of all sequences
    int least_sharing;
    SparseWorkspace workspace;

    static int tile_queries_of(int heads) { return static_cast<int>(sparse_tile_queries(heads)); }
    __host__ __device__ int tile_rows() const { return tile_queries * group_size(); }
    __host__ __device__ bool any_slots() const { return least_sharing > 1; }
    /// Of a query of a tile.
    __host__ __device__ int row(int tile, int query, int group) const {
        return (tile * tile_queries + query) * groups + group;
    }
    /// A slot has the n-th partial outputs of a tile's queries, in the order of its rows, whole
    /// runs.
    __host__ __device__ int slot_rows() const {
        return (tile_rows() + kSlotRun - 1) / kSlotRun * kSlotRun;
    }
    /// First row of the n-th slot of a tile and group.
    __device__ int slot_row(int tile, int group, int n) const {
        return (workspace.places[tile / chunk_tiles].slot + workspace.slots[tile * groups + group] +
                n) *
               slot_rows();
    }
    __host__ __device__ int64_t chunk_slots() const { return tile_groups() * top_k; }
    __host__ __device__ int chunks() const { return (tile_count + chunk_tiles - 1) / chunk_tiles; }
    __host__ __device__ int64_t tile_groups() const { return int64_t{chunk_tiles} * groups; }
    __host__ __device__ int64_t chunk_rows() const { return tile_groups() * tile_queries; }
    __host__ __device__ int64_t lists() const { return int64_t{groups} * all_blocks; }
    __host__ __device__ int64_t most_items() const {
        return lists() + chunk_rows() * top_k / (int64_t{kSparseItemTiles} * tile_queries);
    }
    /// Most rounds that there may be. With no slots, all chunks are one.
    __host__ __device__ int most_rounds() const { return any_slots() ? chunks() : 1; }
};

struct SparseKvOuterArgs : SparseSchedule {
    CUtensorMap q;     // [Nq, Hq, dh] of T, boxes of one query x G heads x 128 bytes
    CUtensorMap k, v;  // [Nk, Hkv * dh] of T, boxes of Bk keys x 128 bytes; v but for e4m3
    float scale;       // on q . k, above 0
    int round;
};

struct SparseUnionArgs : SparseSchedule {
    CUtensorMap q;     // [Nq, Hq, dh] of T, boxes of a tile's queries x G heads x 128 bytes
    CUtensorMap k, v;  // as above
    float scale;
    int round;
    void* out;        // [Nq, Hq, dh] of T, of bf16 where T is e4m3
    float* lse;       // [Nq, Hq]
    int32_t* marked;  // [Nq, Hkv], 0; becomes 1 where the output has a NaN
};

/// The workspace of all chunks.
cudaError_t launch_sparse_schedule(const SparseSchedule&, cudaStream_t);
// One round, in this order; the first where any_slots(). T: __nv_bfloat16, __half, __nv_fp8_e4m3.
template <typename T>
cudaError_t launch_sparse_kv_outer_sm90(const SparseKvOuterArgs&, int sms, cudaStream_t);
template <typename T>
cudaError_t launch_sparse_union_sm90(const SparseUnionArgs&, int sms, cudaStream_t);

}  // namespace msa::cuda
