// SPDX-License-Identifier: MIT
#include "gpu/tile_parts.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>

#include "core/problem.h"

namespace msa::cuda {
namespace {

/// The parts of all tiles, the longest first.
TileParts cut_by(const std::vector<QueryTile>& tiles, const TileCut& cut, int64_t share,
                 bool finer) {
    TileParts made;
    for (const QueryTile& tile : tiles) {
        const int64_t parts = std::max<int64_t>(
            parts_of(tile.most_visible, static_cast<int32_t>(std::min<int64_t>(share, INT32_MAX)),
                     finer, static_cast<int32_t>(cut.most_parts)),
            cut.least_parts);
        made.most = std::max(made.most, static_cast<int>(parts));
        for (int64_t part = 0; part < parts; ++part)
            made.parts.push_back({tile, static_cast<int32_t>(part), static_cast<int32_t>(parts)});
    }
    std::stable_sort(
        made.parts.begin(), made.parts.end(), [](const TilePart& a, const TilePart& b) {
            return int64_t{a.tile.most_visible} * b.parts > int64_t{b.tile.most_visible} * a.parts;
        });
    return made;
}

/// Keys of the thread block that ends last, where each takes the next part when it is done.
int64_t longest_work(const TileParts& made, int64_t thread_blocks) {
    std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> ends;
    for (const TilePart& part : made.parts) {
        int64_t begin = 0;
        if (std::ssize(ends) == thread_blocks) {
            begin = ends.top();
            ends.pop();
        }
        ends.push(begin + ceil_div(part.tile.most_visible, part.parts));
    }
    int64_t last = 0;
    for (; !ends.empty(); ends.pop()) last = ends.top();
    return last;
}

}  // namespace

TileParts cut_tiles(const std::vector<QueryTile>& tiles, int64_t queries, const TileCut& cut) {
    int64_t keys = 0;
    for (const QueryTile& tile : tiles) keys += tile.most_visible;
    const int64_t share = std::max(ceil_div(keys, cut.thread_blocks), cut.least_keys);
    TileParts made = cut_by(tiles, cut, share, false);
    TileParts finer = cut_by(tiles, cut, share, true);
    if (8 * longest_work(finer, cut.thread_blocks) < 7 * longest_work(made, cut.thread_blocks))
        made = std::move(finer);
    if (made.most == 1 || queries == 0) return made;
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
