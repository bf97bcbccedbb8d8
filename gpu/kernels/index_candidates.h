// SPDX-License-Identifier: MIT
// index_select by an int8 copy of index_k (core/number/coarse_keys.h): what follows the pass over
// the copy, index_select_sm90 with coarse_rows.
//
//   find      of each row: the blocks that are surely in, and those to score again
//   scan      where the uses of each block begin, and its work items
//   place     the uses, by block
//   rescore   scores of the uses in the operands' type (index_rescore_sm90.h)
//   pick      the best of each row's rescored blocks complete its ids
// A row of which the lists do not hold all candidates is marked; its ids are not written.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/kernels/index_select_sm90.h"

namespace msa::cuda {

constexpr int kMostRescored = 32;  // blocks of a row: one per lane
constexpr int kItemUses = 256;     // uses of one block that a thread block scores at a time

struct RowCandidates {
    uint8_t sure;   // their ids are the first of the row's
    uint8_t again;  // blocks to score again
};

/// Blocks are counted over all sequences where not said otherwise.
struct IndexCandidates {
    IndexSelectArgs listed;  // of the pass over the copy
    const QueryTile* tiles;
    int tile_count;
    int all_blocks;
    RowCandidates* rows;  // [Nq, Hkv]
    uint8_t* marked;      // [Nq, Hkv] 1: too many candidates
    int32_t* blocks;      // [Nq, Hkv, kMostRescored] ids
    float* scores;        // likewise
    int32_t* counts;      // [all_blocks] of uses; 0 before
    int32_t* starts;      // [all_blocks + 1] of uses
    int32_t* items;       // [all_blocks + 1] of work items
    int32_t* uses;        // row * kMostRescored + place, of which there are at most 2^31
};

/// find, scan and place; needs parts of all queries.
cudaError_t launch_find_candidates(const IndexCandidates&, cudaStream_t);
cudaError_t launch_pick_candidates(const IndexCandidates&, cudaStream_t);

}  // namespace msa::cuda
