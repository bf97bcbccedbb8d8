// SPDX-License-Identifier: MIT
// Tiles of queries and blocks of keys, for tiled kernels.
#pragma once

#include <cstdint>

#include "core/packed_batch.h"

namespace msa::cuda {

/// Consecutive queries of one sequence.
struct QueryTile {
    int64_t query;         // first query row
    int64_t key;           // first key row of the sequence
    int32_t queries;       // rows
    int32_t most_visible;  // keys that the last of them sees
    int32_t first_block;   // number of the sequence's block 0, counted over all sequences
    int32_t sequence;
};

/// A block of a sequence.
struct SequenceBlock {
    int64_t key;         // first key row
    int32_t keys;        // Bk, or fewer in the last of a sequence
    int32_t block;       // its id
    QueryRange queries;  // of the sequence
};

}  // namespace msa::cuda
