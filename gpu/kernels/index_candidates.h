// SPDX-License-Identifier: MIT
// index_select by an int8 copy of index_k (core/number/coarse_keys.h): what follows the pass over
// the copy, index_select_sm90 with coarse_rows, of a piece of the queries.
//
//   find      of each row: the blocks that are surely in, and those to score again
//   scan      where the uses of each block begin, and its work items
//   place     the uses, by block
//   rescore   scores of the uses in the operands' type (index_rescore_sm90.h)
//   pick      the best of each row's rescored blocks complete its ids
// A row with too many candidates is marked; its ids are not written.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/kernels/index_select_sm90.h"

namespace msa::cuda {

constexpr int kWarpBlocks = 1024;  // of which a warp finds a row's candidates; else a thread block
constexpr int kItemUses = 256;     // uses of one block that a thread block scores at a time

/// Candidates of a row that are found, so that it is not marked.
constexpr int most_candidates(int64_t blocks) { return blocks <= kWarpBlocks ? 512 : 1024; }

struct RowCandidates {
    uint16_t sure;   // their ids are the first of the row's
    uint16_t again;  // blocks to score again
};

/// Blocks are counted over all sequences where not said otherwise; rows are those of the piece,
/// from pass.scores.first_row on.
struct IndexCandidates {
    IndexSelectArgs pass;    // that over the copy
    const QueryTile* tiles;  // of the piece
    int tile_count;
    int64_t row_count;
    int most;  // candidates of a row: most_candidates()
    int all_blocks;
    RowCandidates* rows;  // [rows]
    uint8_t* marked;      // [Nq, Hkv] 1: too many candidates
    int32_t* blocks;      // [rows, most] ids
    float* scores;        // likewise
    int32_t* counts;      // [all_blocks] of uses; 0 before and after
    int32_t* starts;      // [all_blocks + 1] of uses
    int32_t* items;       // [all_blocks + 1] of work items
    int32_t* uses;        // row * most + place; a piece has fewer than 2^31
};

/// find, scan and place; needs the upper bounds of all rows of the piece.
cudaError_t launch_find_candidates(const IndexCandidates&, cudaStream_t);
cudaError_t launch_pick_candidates(const IndexCandidates&, cudaStream_t);

}  // namespace msa::cuda
