// SPDX-License-Identifier: MIT
#include "gpu/tile_parts.h"

#include <algorithm>

#include "core/problem.h"

namespace msa::cuda {

TileParts cut_tiles(const std::vector<QueryTile>& tiles, int64_t queries, const TileCut& cut) {
    int64_t keys = 0;
    for (const QueryTile& tile : tiles) keys += tile.most_visible;
    const int64_t share = std::max(ceil_div(keys, cut.thread_blocks), cut.least_keys);
    TileParts made;
    for (const QueryTile& tile : tiles) {
        int64_t parts = tile.most_visible > 2 * share ? tile.most_visible / share : 1;
        parts = std::clamp(parts, cut.least_parts, cut.most_parts);
        made.most = std::max(made.most, static_cast<int>(parts));
        for (int64_t part = 0; part < parts; ++part)
            made.parts.push_back({tile, static_cast<int32_t>(part), static_cast<int32_t>(parts)});
    }
    std::stable_sort(
        made.parts.begin(), made.parts.end(), [](const TilePart& a, const TilePart& b) {
            return int64_t{a.tile.most_visible} * b.parts > int64_t{b.tile.most_visible} * a.parts;
        });
    if (made.most == 1) return made;
    made.of_query.resize(static_cast<size_t>(queries));
    for (const TilePart& part : made.parts)
        if (part.part == 0)
            for (int64_t q = part.tile.query; q < part.tile.query + part.tile.queries; ++q)
                made.of_query[static_cast<size_t>(q)].parts = part.parts;
    for (QueryParts& of : made.of_query) {
        of.before = static_cast<int32_t>(made.all);
        if (of.parts > 1) made.all += of.parts;
    }
    return made;
}

}  // namespace msa::cuda
