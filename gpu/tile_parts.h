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

/// What a cut depends on beside the tiles.
struct TileCut {
    int64_t thread_blocks;  // that the chip holds at once
    int64_t least_keys;     // of a part
    int64_t most_parts;     // of a tile
    int64_t least_parts = 1;
    auto operator<=>(const TileCut&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// A tile is cut in proportion to its keys, by the share of all tiles' keys that a thread block
/// has. A tile of up to two shares stays whole, because parts must be merged, unless parts of at
/// most 9/8 shares end an eighth earlier, as those of a square of few tiles do.
TileParts cut_tiles(const std::vector<QueryTile>& tiles, int64_t queries, const TileCut&);

}  // namespace msa::cuda
