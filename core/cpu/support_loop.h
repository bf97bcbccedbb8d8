// SPDX-License-Identifier: MIT
// The loop over tiles of queries that attend to blocks of their own choice: a tile walks the union
// of its queries' blocks, so that a block's keys are packed once for all of them.
#pragma once

#include <omp.h>

#include <algorithm>
#include <span>
#include <vector>

#include "core/cpu/tile.h"
#include "core/problem.h"
#include "core/selection.h"

namespace msa::cpu {

/// Rows of a tile of neighbouring queries: enough to pay for packing a block.
inline constexpr int64_t kUnionTileRows = 1024;

/// A query of a tile and one block that it attends to, its slot-th.
struct BlockUse {
    int64_t block;
    int64_t query;  // of the tile, from 0
    int64_t slot;
};

/// The queries of one tile, of one group.
struct SupportTile {
    QueryRange queries;
    int64_t group;
    const KeyRange* visible;         // [queries], not decreasing
    std::span<const BlockUse> uses;  // by block, then query

    int64_t size() const { return queries.end - queries.begin; }
    int64_t first_key() const { return visible[0].first; }  // of the sequence, packed
    /// Tokens of `block` to pack: those that the tile's last query sees.
    int64_t keys(int64_t block, int64_t block_size) const {
        return std::clamp<int64_t>(visible[size() - 1].count - block * block_size, 0, block_size);
    }
    /// Tokens of `block` that a query of the tile sees.
    int64_t seen(int64_t query, int64_t block, int64_t block_size) const {
        return std::clamp<int64_t>(visible[query].count - block * block_size, 0, block_size);
    }
};

inline std::vector<BlockUse> uses_of(QueryRange queries, int64_t group,
                                     View<const int32_t, 3> ids) {
    std::vector<BlockUse> uses;
    for (int64_t i = queries.begin; i < queries.end; ++i) {
        int64_t slot = 0;
        for (int64_t b : selected(ids, i, group)) uses.push_back({b, i - queries.begin, slot++});
    }
    std::sort(uses.begin(), uses.end(), [](const BlockUse& a, const BlockUse& b) {
        return a.block != b.block ? a.block < b.block : a.query < b.query;
    });
    return uses;
}

/// Calls body(SupportTile, thread) for every tile of at most `tile_queries` queries and group, in
/// parallel. The body must not throw.
template <typename Body>
void for_each_support_tile(const Problem& p, View<const int32_t, 3> ids, int64_t tile_queries,
                           int threads, Body body) {
    const std::vector<KeyRange> visible = visible_keys(p);
    const std::vector<QueryRange> tiles = query_tiles(p, tile_queries);
    const auto items = static_cast<int64_t>(tiles.size()) * p.kv_heads;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t item = items - 1; item >= 0; --item) {
        const QueryRange queries = tiles[static_cast<size_t>(item / p.kv_heads)];
        const int64_t group = item % p.kv_heads;
        const KeyRange* seen = visible.data() + queries.begin;
        const std::vector<BlockUse> uses = uses_of(queries, group, ids);
        body(SupportTile{queries, group, seen, uses}, omp_get_thread_num());
    }
}

/// Consecutive queries [first, first + count) of a tile that use `block`; uses[0] is the first's.
struct UseRun {
    int64_t block;
    int64_t first;
    int64_t count;
    const BlockUse* uses;
};

/// Calls on_block(block) for each block of the tile, then on_run(UseRun) for each of its runs.
template <typename OnBlock, typename OnRun>
void for_each_run(std::span<const BlockUse> uses, OnBlock on_block, OnRun on_run) {
    for (size_t i = 0; i < uses.size();) {
        if (i == 0 || uses[i].block != uses[i - 1].block) on_block(uses[i].block);
        size_t end = i + 1;
        while (end < uses.size() && uses[end].block == uses[i].block &&
               uses[end].query == uses[end - 1].query + 1)
            ++end;
        on_run(UseRun{uses[i].block, uses[i].query, static_cast<int64_t>(end - i), &uses[i]});
        i = end;
    }
}

}  // namespace msa::cpu
