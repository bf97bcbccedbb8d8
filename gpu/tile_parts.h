// SPDX-License-Identifier: MIT
// How index_select cuts the keys of its tiles, so that thread blocks have about equal work.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "gpu/query_tile.h"

namespace msa::cuda {

/// A part of the keys of a tile: one of `parts` about equal ones.
struct TilePart {
    QueryTile tile;
    int32_t part, parts;
};

/// The parts of the keys of a query, and how many its earlier queries have together.
struct QueryParts {
    int32_t before, parts;
};

/// The parts of all tiles, the longest first, and those of each query where some tile has more than
/// one.
struct TileParts {
    std::vector<TilePart> parts;
    std::vector<QueryParts> of_query;  // [Nq]; empty: no tile is cut
    int most = 1;                      // parts of a tile
    int64_t all = 0;                   // of all queries, of those of more than one
};

/// What a cut depends on in addition to the tiles.
struct TileCut {
    int64_t thread_blocks;  // that the chip holds at once
    int64_t least_keys;     // of a part
    int64_t most_parts;     // of a tile
    int64_t least_parts = 1;
    auto operator<=>(const TileCut&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// The parts of a tile of so many keys, where a thread block's share of all tiles' is `share`:
/// whole up to two shares, or, finer, parts of at most 9/8.
constexpr int32_t parts_of(int32_t keys, int32_t share, bool finer, int32_t most) {
    const auto all = static_cast<uint32_t>(keys), each = static_cast<uint32_t>(share);
    const auto parts = static_cast<int32_t>((all + (finer ? each - (each + 7) / 8 : 0)) / each);
    return parts < 1 ? 1 : parts < most ? parts : most;
}

/// A part that the device cut.
struct PartNow {
    TilePart piece;    // parts 0: there is none
    QueryParts lists;  // of the tile's first query
    int32_t fewer;     // keys that the tile's sequence has fewer than the batch says
};

/// What index_select needs to cut its tiles on the device, by lengths that only the device knows.
/// Parts are finer where all of them fit on the chip at once.
struct CutNow {
    const QueryTile* tiles = nullptr;  // as long as they may become; null: the host cuts
    int tile_count = 0, thread_blocks = 0, least_keys = 0, most_parts = 0;
    int most_queries = 0;            // of a tile
    QueryParts* of_query = nullptr;  // [Nq], filled by the kernel that finds parts
    int32_t* seen = nullptr;         // [Nq] keys that each query sees, likewise
    PartNow* found = nullptr;        // [part_count], of longer chunks than a decode's
};

/// A tile is cut in proportion to its keys, by the share of all tiles' keys that a thread block
/// has. A tile of up to two shares stays whole, because parts must be merged, unless parts of at
/// most 9/8 shares end an eighth earlier, as those of a square of few tiles do. `queries`: Nq; 0:
/// no lists are merged, so that of_query is not needed.
TileParts cut_tiles(const std::vector<QueryTile>& tiles, int64_t queries, const TileCut&);

}  // namespace msa::cuda
