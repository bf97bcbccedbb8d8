// SPDX-License-Identifier: MIT
// How a call of sparse_attention is cut for the tuned kernels: arithmetic on its sizes.
#pragma once

#include "core/backend.h"
#include "gpu/half_types.h"
#include "gpu/kernels/sparse_attention_sm90.h"
#include "gpu/runtime.h"

namespace msa::cuda {

/// Bound on the lists of one call. A call whose lists, or whose slots (kSparseSlotBytes), could be
/// larger is cut into chunks of tiles.
inline constexpr int64_t kMostListBytes = int64_t{1} << 30;

/// Where (tile, group) pairs are at most this many for each SM, unions are cut into parts on
/// Hopper. Tiles of up to kFewTileQueries queries then walk unions alone: passes by blocks need
/// four more launches, each of which waits for the one before. Measured with tiles of 8, where
/// neighbours that share few blocks lose (docs/kernels.md); larger tiles would lose more.
inline constexpr int64_t kFewUnions = 2, kFewTileQueries = 8;
/// The number of parts that lets all unions end first. A union has about `keys` keys or more, and
/// each SM takes one part after another. A part has at least a step, and takes kPartKeys more, for
/// its first copies and its slot; to join parts takes kJoinKeys.
constexpr int union_parts(int64_t unions, int64_t keys, int64_t sms) {
    constexpr int64_t kPartKeys = 128, kJoinKeys = 256, kLeastKeys = 128;
    const auto time = [&](int64_t parts) {
        return ceil_div(unions * parts, sms) * (ceil_div(keys, parts) + kPartKeys) +
               (parts > 1 ? kJoinKeys : 0);
    };
    int best = 1;
    for (int parts = 2; parts <= kMostUnionParts && parts * kLeastKeys <= keys; ++parts)
        if (time(parts) < time(best)) best = parts;
    return best;
}

/// Tiles of at most `tile_queries` queries, none across sequences.
int64_t count_tiles(const Problem&, int64_t tile_queries);

/// Entries of each array of a SparseWorkspace.
struct SparseWorkspaceSize {
    int64_t chunks, blocks, tile_groups, counts, ends, uses, items, rows, slot_rows;

    /// For `of_chunks` chunks that are scheduled at once.
    SparseWorkspaceSize(const SparseSchedule&, int64_t of_chunks);
    int64_t list_bytes() const {
        const auto bytes = [](int64_t count, size_t each) {
            return count * static_cast<int64_t>(each);
        };
        return bytes(blocks, sizeof(UnionBlock)) +
               bytes(2 * tile_groups + counts + ends, sizeof(int32_t)) +
               bytes(uses, sizeof(BlockUse)) + bytes(items, sizeof(KeyBlockItem)) +
               bytes(chunks, sizeof(SparseRound)) + bytes(chunks, sizeof(SparseChunkPlace)) +
               bytes(rows, sizeof(uint32_t));
    }
    int64_t slot_bytes(int64_t head_dim) const {
        return slot_rows * (head_dim * kHalfBytes + int64_t{sizeof(float)});
    }
};

struct SparsePlan {
    bool decode = false;         // the kernel for few queries; the members below are unused
    SparseSchedule schedule{};   // sizes alone, no addresses
    int64_t tiles = 0;           // of the call
    int64_t chunks_at_once = 1;  // that one schedule covers; one chunk is too little work

    /// For a call in `order`, not q_outer, on operands of this type.
    SparsePlan(const Problem&, int64_t top_k, Element, LoopOrder order, const Device&);
};

}  // namespace msa::cuda
