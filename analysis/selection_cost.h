// SPDX-License-Identifier: MIT
// What sparse attention costs on the blocks that were really selected, in three orders:
//   q_outer   each query walks its own blocks
//   kv_outer  each block gathers its queries, ceil(128 / G) of them and their G heads to an MMA
//             tile; partial outputs go to slots and are combined (sec:kernel:sparse_attn)
//   union     a tile of ceil(128 / G) consecutive queries walks the union of their blocks, masked;
//             outputs stay on chip
// Work runs group by group, queries in order, one tile at a time: what a machine with many tiles in
// flight makes of it is not modelled.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/hardware.h"
#include "core/problem.h"

namespace msa::analysis {

/// Reads of (group, block) pairs by tiles of consecutive queries.
struct TileReads {
    int64_t tiles = 0;   // over all groups
    int64_t reads = 0;   // blocks read: sizes of the tiles' unions summed
    int64_t misses = 0;  // of these, not found in the cache
    double mean_union() const { return static_cast<double>(reads) / static_cast<double>(tiles); }
};

/// Tiles of `tile_queries` queries that never cross a sequence walk the union of their blocks in
/// ascending order, through a least-recently-used cache of `cache_blocks` blocks (0: none).
TileReads tile_reads(const Problem&, View<const int32_t, 3> ids, int64_t tile_queries,
                     int64_t cache_blocks);

/// One order of the loops: all its phases together.
struct OrderCost {
    std::string name;
    double executed_flops = 0;  // rows of padded MMA tiles and masked keys included
    double memory_bytes = 0;
    double cache_bytes = 0;  // through the shared cache, misses included
    double seconds = 0;      // see selection_cost()
};

struct SelectionCost {
    int64_t pairs = 0;            // (query, group, block) selected
    double useful_flops = 0;      // 4 G dh per selected visible key
    double used_slots = 0;        // pairs / (Nq Hkv k)
    int64_t used_blocks = 0;      // (group, block) pairs that any query selected
    double mean_queries = 0;      // pairs / used_blocks
    int64_t most_queries = 0;     // of one (group, block)
    int64_t chunks = 0;           // pieces of at most 2 k Bk queries
    double mma_fill = 0;          // used share of the rows of KV-outer's MMA tiles
    double gathered_q_bytes = 0;  // e G dh per pair; as many again are partial outputs
    std::vector<std::pair<int64_t, TileReads>> unions;  // by queries of a tile: 1, 2, 4, ..., 128/G
    std::vector<OrderCost> orders;                      // q_outer, kv_outer, union
    /// Mean union size at which the union order, were arithmetic its only limit, would take as long
    /// as the better of the other two.
    double break_even_union = 0;
};

/// For ids [Nq, Hkv, k] of queries that follow each other without gaps; q, k, v and outputs in
/// `element`. An order's time is the largest of executed FLOPs over the peak, memory bytes over the
/// bandwidth and, where the machine's is known, cache bytes over the cache's bandwidth; KV-outer's
/// combine is added to it.
SelectionCost selection_cost(const Problem&, View<const int32_t, 3> ids, Element element,
                             const Hardware&);

}  // namespace msa::analysis
