// SPDX-License-Identifier: MIT
// sparse_attention (eq:msa-sparse-attn) on Hopper, both loop orders at once. A tile is 128 rows:
// the G heads of 128 / G, at most 32, consecutive queries of one group; rows left over are empty,
// their results never stored. Blocks that at least `least_sharing` queries of a tile selected are
// walked by the tile as a union, output in registers. The other (query, block) pairs go KV-outer
// (sec:kernel:sparse_attn), first: each block gathers its queries, partial outputs go to slots; the
// tiles add them to what their unions give. least_sharing 1 is Q-outer throughout, tile_queries + 1
// KV-outer.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/device/query_tile.cuh"
#include "gpu/kernels/sparse_sizes.h"

namespace msa::cuda {

constexpr int kSparseMostHeads = 64;  // G, but for few queries
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
    int32_t group, begin, count, padding;
};

/// Device memory that the kernels share, for one chunk of tiles; R rows of it, see
/// SparseArgs::row. That of more chunks lies behind, but for the slots, which they share.
struct SparseWorkspace {
    UnionBlock* blocks;     // [Hkv, chunk_tiles, k * tile_queries]
    int32_t* block_counts;  // [Hkv, chunk_tiles]
    int32_t* use_counts;    // [Hkv, blocks of all sequences]
    int32_t* use_ends;      // like it
    BlockUse* uses;         // [R * k]
    KeyBlockItem* items;    // [most_items()]
    int32_t* item_count;    // [1]
    uint32_t* in_slots;     // [R], mask over positions of ids; the n-th has slot n
    void* partial_out;   // [chunk_tiles, Hkv, k, slot_rows(), dh] bf16, dh as slot_chunk() has it
    float* partial_lse;  // [chunk_tiles, Hkv, k, slot_rows()], base 2
};

static_assert(sizeof(*SparseWorkspace::in_slots) == kSlotMaskBytes);

struct SparseArgs {
    const void* q;           // [Nq, Hq, dh] bf16
    bool q_settled;          // the call before does not write q: it may be read ahead
    CUtensorMap q_tile;      // [Nq, Hq, dh] bf16, boxes of a tile's queries x G heads x 64 channels
    CUtensorMap q_one;       // boxes of one query
    CUtensorMap k, v;        // [Nk, Hkv * dh] bf16, boxes of Bk keys x 64 channels
    const int32_t* ids;      // [Nq, Hkv, top_k]
    const QueryTile* tiles;  // at most tile_queries queries each
    int tile_queries;        // tile_queries_of(G)
    int tile_count, chunk_tiles;                           // of all chunks, of each but the last
    int64_t queries;                                       // of the call
    int all_blocks;                                        // of all sequences
    const KeyRange* visible;                               // [Nq]
    int query_heads, groups, head_dim, block_size, top_k;  // k <= 32
    float scale;                                           // on q . k, above 0
    int least_sharing;
    SparseWorkspace workspace;
    void* out;        // [Nq, Hq, dh] bf16
    float* lse;       // [Nq, Hq]
    int32_t* marked;  // [Nq, Hkv], 0; becomes 1 where the output has a NaN

    __host__ __device__ int group_size() const { return query_heads / groups; }
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
    __host__ __device__ int64_t chunk_rows() const { return row(chunk_tiles, 0, 0); }
    __host__ __device__ int64_t most_items() const {
        return int64_t{groups} * all_blocks +
               chunk_rows() * top_k / (kSparseItemTiles * tile_queries);
    }
    /// One chunk alone.
    __host__ __device__ SparseArgs chunk(int index) const {
        SparseArgs one = *this;
        one.tiles += int64_t{index} * chunk_tiles;
        one.tile_count = index + 1 < chunks() ? chunk_tiles : tile_count - index * chunk_tiles;
        SparseWorkspace& work = one.workspace;
        const int64_t lists = int64_t{groups} * all_blocks, tile_groups = chunk_tiles * groups;
        work.blocks += index * tile_groups * top_k * tile_queries;
        work.block_counts += index * tile_groups;
        work.use_counts += index * lists;
        work.use_ends += index * lists;
        work.uses += index * chunk_rows() * top_k;
        work.items += index * most_items();
        work.item_count += index;
        work.in_slots += index * chunk_rows();
        return one;
    }
};

/// Few queries, all in one kernel: needs q, k, v, ids, visible, sizes, out and lse alone. Best
/// while its thread blocks fill the chip a few times over at most.
int64_t few_blocks(const SparseArgs&);
cudaError_t launch_sparse_few_sm90(const SparseArgs&, cudaStream_t);

/// The kernels in order: the schedule of all chunks, then one chunk after the other.
cudaError_t launch_sparse_attention_sm90(const SparseArgs&, int processors, cudaStream_t);

// The stages of it, the last two for one chunk.
cudaError_t launch_sparse_schedule(const SparseArgs&, cudaStream_t);
cudaError_t launch_sparse_kv_outer_sm90(const SparseArgs&, int processors, cudaStream_t);
cudaError_t launch_sparse_union_sm90(const SparseArgs&, int processors, cudaStream_t);

}  // namespace msa::cuda
