// SPDX-License-Identifier: MIT
// sparse_attention over the union of the blocks that neighbouring queries select: 128 rows
// (128 / G queries of one group) walk each block of the union once, with the rows that did not
// select it masked. Output stays in registers; no slots.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/device/query_tile.cuh"

namespace msa::gpu {

constexpr int kUnionRows = 128;  // (query, head) rows of a tile

/// A block, and which queries of the tile selected it (bit i: query i).
struct UnionBlock {
    int32_t block;
    uint32_t queries;
};

struct UnionArgs {
    CUtensorMap q;           // [Nq, Hq, dh] bf16, boxes of 128 / G queries x G heads x 64 channels
    CUtensorMap k, v;        // [Nk, Hkv * dh] bf16, boxes of Bk keys x 64 channels
    const int32_t* ids;      // [Nq, Hkv, top_k]
    const QueryTile* tiles;  // of at most 128 / G queries each
    int tile_count;
    const int32_t* visible;  // [Nq]
    int query_heads, groups, head_dim, block_size, top_k;  // G from 4 to 64, a power of 2
    float scale;             // on q . k, above 0
    UnionBlock* blocks;      // workspace [tile_count, Hkv, top_k * 128 / G]
    int32_t* counts;         // workspace [tile_count, Hkv]
    void* out;               // [Nq, Hq, dh] bf16
    float* lse;              // [Nq, Hq]
};

cudaError_t launch_sparse_attention_union_sm90(const UnionArgs&, cudaStream_t);

}  // namespace msa::gpu
