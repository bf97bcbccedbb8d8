// SPDX-License-Identifier: MIT
// sparse_attention (eq:msa-sparse-attn) on Hopper, both loop orders at once. A tile is 128 rows:
// 128 / G consecutive queries of one group. Blocks that at least `least_sharing` queries of a tile
// selected are walked by the tile as a union, output in registers. The other (query, block) pairs
// go KV-outer (sec:kernel:sparse_attn), first: each block gathers its queries, partial outputs go
// to slots; the tiles add them to what their unions give. least_sharing 1 is Q-outer throughout,
// 128 / G + 1 KV-outer.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/device/query_tile.cuh"

namespace msa::cuda {

constexpr int kSparseTileRows = 128;
constexpr int kSparseItemTiles = 32;  // tiles of queries of one work item, at most

/// A block of a tile's union, and which queries of the tile selected it (bit i: query i).
struct UnionBlock {
    int32_t block;
    uint32_t queries;
};

/// A (query, block) pair that goes KV-outer.
struct __align__(16) BlockUse {
    int32_t query;
    int32_t place;  // (query, group, slot) of the chunk
    int32_t seen;   // tokens of the block that the query sees
    int32_t key;    // first key row of the block
};

/// Uses [begin, begin + count) of one block.
struct KeyBlockItem {
    int32_t group, begin, count, padding;
};

/// Device memory that the kernels share, for one chunk of queries.
struct SparseWorkspace {
    UnionBlock* blocks;     // [Hkv, tile_count, k * 128 / G]
    int32_t* block_counts;  // [Hkv, tile_count]
    int32_t* use_counts;    // [Hkv, blocks of all sequences]
    int32_t* use_ends;      // like it
    BlockUse* uses;         // [queries * Hkv * k]
    KeyBlockItem* items;    // [Hkv * blocks of all sequences + queries * Hkv * k / (128 / G * 32)]
    int32_t* item_count;    // [1]
    uint32_t* in_slots;     // [queries, Hkv], mask over positions of ids; the n-th has slot n
    void* partial_out;      // [queries, Hkv, k, G, dh] bf16, dh as slot_chunk() has it
    float* partial_lse;     // [queries, Hkv, k, G], base 2
    int32_t* marked;        // [queries, Hkv]; 1: the output has a NaN
};

struct SparseArgs {
    const void* q;           // [Nq, Hq, dh] bf16
    CUtensorMap q_tile;      // [Nq, Hq, dh] bf16, boxes of 128 / G queries x G heads x 64 channels
    CUtensorMap q_one;       // boxes of one query
    CUtensorMap k, v;        // [Nk, Hkv * dh] bf16, boxes of Bk keys x 64 channels
    CUtensorMap partial;     // partial_out as rows of dh, boxes of min(G, 16) rows x 64 channels
    const int32_t* ids;      // [Nq, Hkv, top_k]
    const QueryTile* tiles;  // of the chunk, at most 128 / G queries each
    int tile_count;
    int64_t first_query, queries;                          // of the chunk
    int all_blocks;                                        // of all sequences
    const KeyRange* visible;                               // [Nq]
    int query_heads, groups, head_dim, block_size, top_k;  // G 4 to 64, a power of 2; k <= 32
    float scale;                                           // on q . k, above 0
    int least_sharing;
    SparseWorkspace workspace;
    void* out;   // [Nq, Hq, dh] bf16
    float* lse;  // [Nq, Hq]

    __host__ __device__ int group_size() const { return query_heads / groups; }
    __host__ __device__ int tile_queries() const { return kSparseTileRows / group_size(); }
    __host__ __device__ bool any_slots() const { return least_sharing > 1; }
    __host__ __device__ int64_t row(int64_t query, int group) const {  // of the chunk
        return (query - first_query) * groups + group;
    }
};

/// Few queries, all in one kernel: needs q, k, v, ids, visible, sizes, out and lse alone. Best
/// while its thread blocks fill the chip a few times over at most.
int64_t few_blocks(const SparseArgs&);
cudaError_t launch_sparse_few_sm90(const SparseArgs&, cudaStream_t);

/// The kernels in order, for one chunk.
cudaError_t launch_sparse_attention_sm90(const SparseArgs&, int processors, cudaStream_t);

// The stages of it.
cudaError_t launch_sparse_schedule(const SparseArgs&, cudaStream_t);
cudaError_t launch_sparse_kv_outer_sm90(const SparseArgs&, int processors, cudaStream_t);
cudaError_t launch_sparse_union_sm90(const SparseArgs&, int processors, cudaStream_t);

}  // namespace msa::cuda
