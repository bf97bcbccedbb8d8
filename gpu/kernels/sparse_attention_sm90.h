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
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/kernel_sizes.h"
#include "core/problem.h"
#include "gpu/operand_scales.h"
#include "gpu/query_tile.h"

namespace msa::cuda {

constexpr int kSparseMostHeads = 64;  // G, but for decode
constexpr int kSlotRun = 8;           // rows of a slot that are read at once

/// A block of a tile's union, and which queries of the tile selected it (bit i: query i).
struct __align__(8) UnionBlock {
    int32_t block;
    uint32_t queries;
};

/// A (query, block) pair that goes KV-outer.
struct __align__(16) BlockUse {
    int32_t query;
    int32_t place;  // row of partial_out where its first head goes
    int32_t seen;   // tokens of the block that the query sees
    int32_t key;    // first key row of the block
};

static_assert(sizeof(UnionBlock) == kUnionBlockBytes && sizeof(BlockUse) == kBlockUseBytes);

/// Uses [begin, begin + count) of one block.
struct __align__(16) KeyBlockItem {
    int32_t group, begin, count, block;  // the blocks of all sequences are numbered through
};

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

/// Device memory that the kernels of tiles share, for one chunk of tiles; R rows of it, see
/// SparseSchedule::row. That of more chunks lies behind, but for the slots, which they share.
struct SparseWorkspace {
    UnionBlock* blocks;     // [Hkv, chunk_tiles, k * tile_queries]
    int32_t* block_counts;  // [Hkv, chunk_tiles]
    int32_t* use_counts;    // [Hkv, blocks of all sequences]
    int32_t* use_ends;      // like it
    BlockUse* uses;         // [R * k]
    KeyBlockItem* items;    // [most_items()]
    int32_t* item_count;    // [1]
    uint32_t* in_slots;     // [R], mask over positions of ids; the n-th has slot n
    void* partial_out;   // [chunk_tiles, Hkv, k, slot_rows(), dh] as out, dh as slot_chunk() has it
    float* partial_lse;  // [chunk_tiles, Hkv, k, slot_rows()], base 2
};

static_assert(sizeof(*SparseWorkspace::in_slots) == kSlotMaskBytes);

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
    /// Of a query of a tile of the chunk.
    __host__ __device__ int row(int tile, int query, int group) const {
        return (tile * tile_queries + query) * groups + group;
    }
    /// The n-th slots of a tile's queries lie together, in the order of its rows, whole runs.
    __host__ __device__ int slot_rows() const {
        return (tile_rows() + kSlotRun - 1) / kSlotRun * kSlotRun;
    }
    __host__ __device__ int slot_row(int tile, int group, int n) const {
        return ((tile * groups + group) * top_k + n) * slot_rows();
    }
    __host__ __device__ int chunks() const { return (tile_count + chunk_tiles - 1) / chunk_tiles; }
    __host__ __device__ int64_t tile_groups() const { return int64_t{chunk_tiles} * groups; }
    __host__ __device__ int64_t chunk_rows() const { return tile_groups() * tile_queries; }
    __host__ __device__ int64_t lists() const { return int64_t{groups} * all_blocks; }
    __host__ __device__ int64_t most_items() const {
        return lists() + chunk_rows() * top_k / (int64_t{kSparseItemTiles} * tile_queries);
    }
    /// One chunk alone.
    __host__ __device__ SparseSchedule chunk(int index) const {
        SparseSchedule one = *this;
        one.tiles += int64_t{index} * chunk_tiles;
        one.tile_count = index + 1 < chunks() ? chunk_tiles : tile_count - index * chunk_tiles;
        SparseWorkspace& work = one.workspace;
        work.blocks += index * tile_groups() * top_k * tile_queries;
        work.block_counts += index * tile_groups();
        work.use_counts += index * lists();
        work.use_ends += index * lists();
        work.uses += index * chunk_rows() * top_k;
        work.items += index * most_items();
        work.item_count += index;
        work.in_slots += index * chunk_rows();
        return one;
    }
};

struct SparseKvOuterArgs : SparseSchedule {
    CUtensorMap q;     // [Nq, Hq, dh] of T, boxes of one query x G heads x 128 bytes
    CUtensorMap k, v;  // [Nk, Hkv * dh] of T, boxes of Bk keys x 128 bytes; v but for e4m3
    float scale;       // on q . k, above 0
};

struct SparseUnionArgs : SparseSchedule {
    CUtensorMap q;     // [Nq, Hq, dh] of T, boxes of a tile's queries x G heads x 128 bytes
    CUtensorMap k, v;  // as above
    float scale;
    void* out;        // [Nq, Hq, dh] of T, of bf16 where T is e4m3
    float* lse;       // [Nq, Hq]
    int32_t* marked;  // [Nq, Hkv], 0; becomes 1 where the output has a NaN
};

/// The workspace of all chunks.
cudaError_t launch_sparse_schedule_sm90(const SparseSchedule&, cudaStream_t);
// One chunk, in this order; the first where any_slots(). T: __nv_bfloat16, __half, __nv_fp8_e4m3.
template <typename T>
cudaError_t launch_sparse_kv_outer_sm90(const SparseKvOuterArgs&, int sms, cudaStream_t);
template <typename T>
cudaError_t launch_sparse_union_sm90(const SparseUnionArgs&, int sms, cudaStream_t);

}  // namespace msa::cuda
