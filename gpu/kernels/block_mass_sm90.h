// SPDX-License-Identifier: MIT
// block_mass (P_b) with one product Q K^T: first the log of each block's sum of exponentials per
// head, then the probabilities from these sums alone.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/problem.h"
#include "gpu/query_tile.h"

namespace msa::cuda {

constexpr int kMassTileRows = 256;  // (query, head) rows of a tile, of up to 128 channels
constexpr int mass_tile_rows(int64_t head_dim) { return head_dim > 128 ? 128 : kMassTileRows; }
constexpr int kMassTileKeys = 128;

struct BlockMassArgs {
    const void* q;            // [Nq, Hq, dh] of T
    const void* all_keys;     // [Nk, Hkv, dh], the same as k
    int64_t keys;             // Nk
    CUtensorMap k;            // on Hopper: [Nk, Hkv * dh], boxes of 128 keys x 128 bytes
    int head_dim;             // 64 or 128, on Hopper also 256
    const QueryTile* tiles;   // of at most mass_tile_rows() / G queries, the most work first
    int tile_count;           // at most kMassMostTiles
    const KeyRange* visible;  // [Nq]
    int64_t first_query;      // row 0 of the workspace and the outputs
    int64_t queries;          // rows of them
    int query_heads, groups, blocks, block_size;  // Hq, Hkv, B, Bk (32, 64 or 128)
    float scale;                                  // on q . k, above 0
    float* block_lse;                             // workspace [queries, Hq, B], base 2
    float* mass;                                  // [queries, Hkv, B]
};

constexpr int64_t kMassMostTiles = 65535;  // of a launch

/// Operands of type T: __nv_bfloat16 or __half.
template <typename T>
cudaError_t launch_block_mass_sm90(const BlockMassArgs&, cudaStream_t);
template <typename T>
cudaError_t launch_block_mass_sm80(const BlockMassArgs&, cudaStream_t);
/// Their last step: from block_lse to mass.
cudaError_t launch_block_mass_normalise(const BlockMassArgs&, cudaStream_t);

}  // namespace msa::cuda
