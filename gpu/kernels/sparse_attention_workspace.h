// SPDX-License-Identifier: MIT
// The lists of sparse attention on tiles (sparse_attention_sm90.h).
#pragma once

#include <cstdint>

#include "core/kernel_sizes.h"

namespace msa::cuda {

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
    int32_t key;    // first key of the block: KeyMap's place
};

static_assert(sizeof(UnionBlock) == kUnionBlockBytes && sizeof(BlockUse) == kBlockUseBytes);

/// Chunks whose slots fit together.
struct __align__(16) SparseRound {
    int32_t first_chunk, chunks;  // chunks 0: earlier rounds took all
    int32_t items;                // of KV-outer
    int32_t taken;                // tiles or parts taken, without each thread block's first
};
/// A chunk's round, and the first of its slots there.
struct __align__(8) SparseChunkPlace {
    int32_t round, slot;
};

/// Uses [begin, begin + count) of one block.
struct __align__(16) KeyBlockItem {
    int32_t group, begin, count, block;  // block: counted over all sequences
};

/// Workspace of the kernels on tiles, for all chunks of a schedule; R rows, see
/// SparseSchedule::row. Slots are those of one round.
struct SparseWorkspace {
    UnionBlock* blocks;        // [tiles, Hkv, k * tile_queries]
    int32_t* block_counts;     // [tiles, Hkv]
    int32_t* use_counts;       // [chunks, Hkv, blocks of all sequences]
    int32_t* slot_counts;      // [chunks] slots that a chunk needs; directly after use_counts
    int32_t* use_ends;         // [rounds, Hkv, blocks of all sequences]
    BlockUse* uses;            // [R * k]
    KeyBlockItem* items;       // [chunks, most_items()]; a round's begin at its first chunk's
    SparseRound* rounds;       // [chunks]
    SparseChunkPlace* places;  // [chunks]
    uint32_t* in_slots;        // [R], mask over positions in ids; the n-th set bit has slot n
    int32_t* slots;            // [tiles, Hkv] first slot of a tile and group among its chunk's
    // Slots of (query, block) pairs, or [tiles, Hkv, parts] of parts of unions.
    void* partial_out;   // [slots, slot_rows(), dh] of out's type; order of channels: slot_chunk()
    float* partial_lse;  // [slots, slot_rows()], base 2
};

static_assert(sizeof(*SparseWorkspace::in_slots) == kSlotMaskBytes);

}  // namespace msa::cuda
