// SPDX-License-Identifier: MIT
// sparse_attention (eq:msa-sparse-attn) on Hopper, by one of two methods
// (gpu/plan/sparse_attention.cpp chooses).
//
// Split-K decode, for few queries: sparse_attention_decode_sm90.h.
//
// Tiles, for many queries. A tile is 128 rows: the G heads of 128 / G, at most 32, consecutive
// queries of one group. Rows left over are empty and never stored. The union of a tile holds the
// blocks that at least `least_sharing` of its queries selected; the tile walks it with the output
// in registers. The other (query, block) pairs go KV-outer (sec:kernel:sparse_attn) before that:
// each block gathers its queries and writes partial outputs to slots, which the tiles add to those
// of their unions. least_sharing 1 puts all blocks into unions, tile_queries + 1 none.
//
// A chunk is as many tiles as fit into the slots if all their pairs go KV-outer. Only the device
// knows how many pairs do. A round is as many consecutive chunks as then fit into the slots
// together: at least one chunk, at most all. KV-outer and tiles process one round after the other.
//
// Where there are few tiles and no slots, a union is cut into parts of its steps, which thread
// blocks walk at the same time. A part leaves its normalised output and its lse in a slot of its
// own, and a last kernel joins the parts of each tile.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/kernel_sizes.h"
#include "core/problem.h"
#include "gpu/kernels/sparse_attention_workspace.h"
#include "gpu/key_pages.h"
#include "gpu/operand_scales.h"
#include "gpu/query_tile.h"

namespace msa::cuda {

constexpr int kSparseMostHeads = 64;  // largest G, except in decode
constexpr int kSlotRun = 8;           // rows of a slot that are read at once
constexpr int kMostUnionParts = 8;

/// Teams of a thread block of unions (gpu/device/union_threads_sm90.cuh).
constexpr int kSparseShortStepKeys = 64;  // of a step, where there are two
constexpr int sparse_union_teams(int64_t head_dim, int64_t block_size, int64_t element_bytes) {
    return head_dim == 64 && element_bytes > 1 && block_size <= kSparseShortStepKeys ? 2 : 1;
}

/// Keys of what a union of heads of 256 channels takes of a block in one step. The registers of
/// more would not suffice.
constexpr int kSparseWideStepKeys = 64;

/// Arguments of every kernel here.
struct SparseCall {
    const int32_t* ids;                                    // [Nq, Hkv, top_k]
    const KeyRange* visible;                               // [Nq]
    int64_t queries;                                       // Nq
    int query_heads, groups, head_dim, block_size, top_k;  // Hq, Hkv, dh, Bk; k <= 32
    AttentionScales scales;        // for e4m3: rows [Nq, Hq], blocks [blocks of all sequences, Hkv]
    const char* values = nullptr;  // for e4m3 tiles: from launch_transpose_values()
    KeyMap key_map;                // on Hopper: of k and v

    __host__ __device__ int group_size() const { return query_heads / groups; }
};

/// How a call is cut into tiles, and which pairs go where.
struct SparseSchedule : SparseCall {
    const QueryTile* tiles;       // at most tile_queries queries each
    int tile_queries;             // tile_queries_of(G)
    int tile_count, chunk_tiles;  // of all chunks, of each but the last
    int all_blocks;               // of all sequences
    int least_sharing;
    int parts;        // of a union; 1 where any_slots()
    int32_t* marked;  // [Nq, Hkv]: 0 in the schedule, set to 1 if the output has a NaN
    SparseWorkspace workspace;

    static int tile_queries_of(int heads) { return static_cast<int>(sparse_tile_queries(heads)); }
    __host__ __device__ int tile_rows() const { return tile_queries * group_size(); }
    __host__ __device__ bool any_slots() const { return least_sharing > 1; }
    /// Workspace row of a query of a tile.
    __host__ __device__ int row(int tile, int query, int group) const {
        return (tile * tile_queries + query) * groups + group;
    }
    /// Rows of a slot, rounded up to runs of kSlotRun. The n-th slot of a tile holds the n-th
    /// partial output of each of its queries, in the order of the tile's rows.
    __host__ __device__ int slot_rows() const {
        return (tile_rows() + kSlotRun - 1) / kSlotRun * kSlotRun;
    }
    /// First row of the n-th slot of a tile and group.
    __device__ int slot_row(int tile, int group, int n) const {
        return (workspace.places[tile / chunk_tiles].slot + workspace.slots[tile * groups + group] +
                n) *
               slot_rows();
    }
    /// The first row of the slot of a part of a union; `item`: tile * groups + group.
    __device__ int part_row(int item, int part) const {
        return (item * parts + part) * slot_rows();
    }
    /// The most slots that the tiles of a chunk can ask for.
    __host__ __device__ int64_t chunk_slots() const {
        return tile_groups() * (any_slots() ? top_k : parts > 1 ? parts : 0);
    }
    __host__ __device__ int chunks() const { return (tile_count + chunk_tiles - 1) / chunk_tiles; }
    __host__ __device__ int64_t tile_groups() const { return int64_t{chunk_tiles} * groups; }
    __host__ __device__ int64_t chunk_rows() const { return tile_groups() * tile_queries; }
    __host__ __device__ int64_t lists() const { return int64_t{groups} * all_blocks; }
    __host__ __device__ int64_t most_items() const {
        return lists() + chunk_rows() * top_k / (int64_t{kSparseItemTiles} * tile_queries);
    }
    /// Upper bound on the number of rounds. Without slots, all chunks are one round.
    __host__ __device__ int most_rounds() const { return any_slots() ? chunks() : 1; }
};

struct SparseKvOuterArgs : SparseSchedule {
    CUtensorMap q;  // [Nq, Hq, dh] of T, boxes of one query x G heads x 128 bytes
    // Keys of T as rows, boxes of Bk keys x 128 bytes, half as many where halved; v but for e4m3.
    CUtensorMap k, v;
    float scale;  // on q . k, above 0
    int round;
};

struct SparseUnionArgs : SparseSchedule {
    CUtensorMap q;     // [Nq, Hq, dh] of T, boxes of a tile's queries x G heads x 128 bytes
    CUtensorMap k, v;  // as above
    float scale;
    int round;
    void* out;   // [Nq, Hq, dh] of T, of bf16 where T is e4m3
    float* lse;  // [Nq, Hq]
};

/// Fills the workspace of all chunks. `early`: see launch_early_if().
cudaError_t launch_sparse_schedule(const SparseSchedule&, bool early, cudaStream_t);
// One round, in this order; the first where any_slots(). T: __nv_bfloat16, __half, __nv_fp8_e4m3.
template <typename T>
cudaError_t launch_sparse_kv_outer_sm90(const SparseKvOuterArgs&, int sms, cudaStream_t);
template <typename T>
cudaError_t launch_sparse_union_sm90(const SparseUnionArgs&, int sms, cudaStream_t);

}  // namespace msa::cuda
