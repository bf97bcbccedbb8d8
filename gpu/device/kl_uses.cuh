// SPDX-License-Identifier: MIT
// The queries that use a block of keys, how many of its keys they see, and their slots.
#pragma once

#include "core/selection.h"
#include "gpu/kernels/index_kl_blocks.h"

namespace msa::cuda {

/// The first place from `begin` on, before `end`, where `is_before` does not hold.
template <typename IsBefore>
__device__ int64_t partition_point(int64_t begin, int64_t end, IsBefore is_before) {
    while (begin < end) {
        const int64_t middle = (begin + end) / 2;
        if (is_before(middle))
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/// Keys of the block that the query sees.
__device__ inline int seen_of_block(const KlBlocks& a, const SequenceBlock& block, int64_t query) {
    const int64_t seen = a.visible[query].count - int64_t{block.block} * a.block_size;
    return static_cast<int>(max(int64_t{0}, min(seen, int64_t{block.keys})));
}

/// The uses of a list that belong to the piece; none if the block is not in the round.
__device__ inline QueryRange uses_of(const KlBlocks& a, int list) {
    if (a.reverse.starts != nullptr) {
        const int64_t begin = a.reverse.starts[list], end = a.reverse.starts[list + 1];
        if (a.whole) return {begin, end};
        const auto first_from = [&](int64_t query) {
            return partition_point(begin, end,
                                   [&](int64_t use) { return a.reverse.queries[use] < query; });
        };
        return {first_from(a.piece.begin), first_from(a.piece.end)};
    }
    const SequenceBlock block = a.blocks[list % a.block_count];
    if (block.block < a.first_block || block.block >= a.first_block + a.slots) return {0, 0};
    const int64_t begin = max(block.queries.begin, a.piece.begin),
                  end = max(begin, min(block.queries.end, a.piece.end));
    return {partition_point(begin, end,
                            [&](int64_t query) { return seen_of_block(a, block, query) == 0; }),
            end};
}

/// The query of a use.
__device__ inline int64_t query_of_use(const KlBlocks& a, int64_t use) {
    return a.reverse.queries != nullptr ? a.reverse.queries[use] : use;
}

/// The position of the block among the row's slots, of a use, for which the reverse index may know
/// it.
__device__ inline int slot_of(const KlBlocks& a, const SequenceBlock& block, int64_t row,
                              int64_t use) {
    if (a.reverse.slots != nullptr) return a.reverse.slots[use];
    if (a.ids == nullptr) return block.block - a.first_block;
    const int32_t* const ids = a.ids + row * a.slots;  // ascending, then the padding -1
    return static_cast<int>(partition_point(0, a.slots, [&](int64_t slot) {
        return static_cast<uint32_t>(ids[slot]) < static_cast<uint32_t>(block.block);
    }));
}

/// Its number in [piece, Hkv, slots].
__device__ inline int64_t number_of(const KlBlocks& a, int64_t row, int slot) {
    return (row - a.piece.begin * a.groups) * a.slots + slot;
}

/// The number of slots of a row that are in use.
__device__ inline int used_slots(const KlBlocks& a, int64_t query, int64_t row) {
    if (a.ids == nullptr) {
        const int64_t blocks = (a.visible[query].count + a.block_size - 1) / a.block_size;
        return static_cast<int>(max(int64_t{0}, min(blocks - a.first_block, int64_t{a.slots})));
    }
    const int32_t* const ids = a.ids + row * a.slots;
    int used = 0;
    while (used < a.slots && ids[used] != kNoBlock) ++used;
    return used;
}

}  // namespace msa::cuda
