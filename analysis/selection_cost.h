// SPDX-License-Identifier: MIT
// The cost of sparse attention on actually selected blocks. Loop orders of our kernels (sizes in
// core/kernel_sizes.h):
//   q_outer    each query walks its own blocks, one query at a time
//   union      a tile of neighbouring queries, 128 rows, walks the union of their blocks, masked;
//              outputs stay on chip
//   kv_outer   each block gathers its queries, in passes of 64 rows; partial outputs go to slots,
//              which the tiles combine; a round of queries at a time, as its slots must fit
//   automatic  in each tile, blocks that enough of its queries share go by union, the rest by
//              kv_outer
// The model runs group by group, queries in order, one tile at a time. It does not model: many
// tiles in flight; that `automatic` uses q_outer for few queries and union for sequences of one
// tile; that blocks of fewer than 128 keys are walked in steps of 128 (64 with 64 channels), the
// last of which may be partly empty; and for e4m3, outputs and partial outputs in bf16 and the
// transposition of values. Also the paper's q_outer and kv_outer (sec:kernel:sparse_attn): every
// block read comes from memory, ceil(128 / G) gathered queries fill a 128-row tile, and handles and
// log-sum-exps are left out.
//
// Memory besides the ids: less than 64 bytes per query and 128 per (group, block).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/hardware.h"
#include "core/problem.h"

namespace msa::analysis {

/// Reads of (group, block) pairs by tiles of consecutive queries.
struct TileReads {
    int64_t tiles = 0;   // over all groups
    int64_t reads = 0;   // blocks read: sum of the tiles' union sizes
    int64_t misses = 0;  // reads not found in the cache
    double union_blocks() const { return static_cast<double>(reads) / static_cast<double>(tiles); }
};

/// Tiles of `tile_queries` queries, none across sequences, read the union of their blocks in
/// ascending order through an LRU cache of `cache_blocks` blocks (0: none).
TileReads tile_reads(const Problem&, View<const int32_t, 3> ids, int64_t tile_queries,
                     int64_t cache_blocks);

/// The work that goes block by block (KV-outer).
struct BlockWork {
    int64_t uses = 0;    // (query, group, block) triples: handles, and partial outputs of G heads
    int64_t items = 0;   // work items; each loads its block
    int64_t passes = 0;  // of 64 rows
    int64_t blocks = 0;  // (round of slots, group, block) with any use
};

/// The split of a call's ids between unions and KV-outer.
struct Split {
    int64_t tile_queries = 1;
    /// A tile's union holds the blocks that at least this many of its queries select; 1: all blocks
    /// that any of them selects.
    int64_t least_sharing = 1;
    // Tiles per chunk, whose slots fit whatever is selected, and chunks per schedule. Consecutive
    // chunks of one schedule whose slots fit together are a round.
    int64_t chunk_tiles = 1, scheduled_chunks = 16;
};
struct SplitWork {
    TileReads unions;
    BlockWork blocks;
};
SplitWork split_work(const Problem&, View<const int32_t, 3> ids, const Split&,
                     int64_t cache_blocks);

/// One loop order, all its phases together.
struct OrderCost {
    std::string name;
    double executed_flops = 0;  // rows of padded MMA tiles and masked keys included
    double memory_bytes = 0;
    double cache_bytes = 0;  // through the shared cache, misses included
    double seconds = 0;      // see selection_cost()
};

struct SelectionCost {
    int64_t pairs = 0;         // (query, group, block) selected
    double useful_flops = 0;   // 4 G dh per selected visible key
    double used_slots = 0;     // pairs / (Nq Hkv k)
    int64_t used_blocks = 0;   // (group, block) pairs that any query selected
    double mean_queries = 0;   // pairs / used_blocks
    int64_t most_queries = 0;  // of one (group, block)
    int64_t work_items = 0;    // of kv_outer
    double pass_fill = 0;      // used share of the rows of kv_outer's passes
    double union_share = 0;    // share of the pairs that `automatic` gives to unions
    /// Bytes of q that kv_outer gathers: e G dh per pair; partial outputs take as much again.
    double gathered_q_bytes = 0;
    std::vector<std::pair<int64_t, TileReads>> unions;  // by queries per tile: 1, 2, 4, ..., T
    std::vector<OrderCost> orders;                      // q_outer, union, kv_outer, automatic
    /// Mean union size at which the union order, if limited only by arithmetic, takes as long as
    /// the better of q_outer and kv_outer.
    double break_even_union_blocks = 0;
    // The paper's accounting.
    int64_t paper_chunks = 0;             // pieces of at most 2 k Bk queries
    double paper_mma_fill = 0;            // used share of the rows of its 128-row tiles
    std::vector<OrderCost> paper_orders;  // q_outer, kv_outer
};

/// For ids [Nq, Hkv, k] of consecutive queries; q, k, v and outputs in `element`. A phase's time is
/// the largest of executed FLOPs over the peak, memory bytes over the bandwidth and, if known,
/// cache bytes over the cache's bandwidth. The phases of an order (schedule, block by block, tile
/// by tile with the combine) are added.
SelectionCost selection_cost(const Problem&, View<const int32_t, 3> ids, Element element,
                             const Hardware&);

}  // namespace msa::analysis
