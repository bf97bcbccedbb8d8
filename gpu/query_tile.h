// SPDX-License-Identifier: MIT
// How tiled kernels see the queries and the blocks of keys.
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
    int32_t first_block;   // block 0 of the sequence when the blocks of all are numbered through
    int32_t padding = 0;
};

/// A block of a sequence.
struct SequenceBlock {
    int64_t key;         // first key row
    int32_t keys;        // Bk but for the last of a sequence
    int32_t block;       // its id
    QueryRange queries;  // of the sequence
};

}  // namespace msa::cuda
