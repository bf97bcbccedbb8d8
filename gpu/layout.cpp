// SPDX-License-Identifier: MIT
#include "gpu/layout.h"

#include <algorithm>

namespace msa::cuda {
namespace {

std::vector<QueryTile> make_tiles(const Problem& p, const std::vector<KeyRange>& visible,
                                  int64_t rows) {
    const std::vector<int64_t> first_block = block_starts(p);
    std::vector<QueryTile> tiles;
    size_t sequence = 0;
    for (const QueryRange& range : query_tiles(p, rows)) {
        while (p.batch.cu_seqlens_q()[sequence + 1] <= range.begin) ++sequence;
        const int64_t most_visible = visible[static_cast<size_t>(range.end - 1)].count;
        tiles.push_back(
            {range.begin, p.batch.cu_seqlens_k()[sequence],
             static_cast<int32_t>(range.end - range.begin), static_cast<int32_t>(most_visible),
             static_cast<int32_t>(first_block[sequence]), static_cast<int32_t>(sequence)});
    }
    return tiles;
}

std::vector<SequenceBlock> make_key_blocks(const Problem& p) {
    std::vector<SequenceBlock> blocks;
    const std::vector<int64_t>&queries = p.batch.cu_seqlens_q(), &keys = p.batch.cu_seqlens_k();
    for (size_t s = 0; s + 1 < keys.size(); ++s)
        for (int64_t at = keys[s]; at < keys[s + 1]; at += p.block_size)
            blocks.push_back({at,
                              static_cast<int32_t>(std::min(p.block_size, keys[s + 1] - at)),
                              static_cast<int32_t>((at - keys[s]) / p.block_size),
                              {queries[s], queries[s + 1]}});
    return blocks;
}

}  // namespace

void sort_longest_first(std::vector<QueryTile>& tiles) {
    std::stable_sort(tiles.begin(), tiles.end(), [](const QueryTile& a, const QueryTile& b) {
        return a.most_visible > b.most_visible;
    });
}

Layout::Layout(const Problem& problem, std::shared_ptr<Stream> stream)
    : problem_(problem),
      stream_(std::move(stream)),
      visible_(upload_to_keep(stream_, visible_keys(problem_))) {}

bool Layout::fits(const Problem& p) const {
    // The blocks of all sequences are numbered through in the tiles.
    return p.block_size == problem_.block_size && p.batch == problem_.batch;
}

const Tiles& Layout::tiles(int64_t rows, TileOrder order) const {
    const auto known = tiles_.find({rows, order});
    if (known != tiles_.end()) return known->second;
    Tiles tiles{make_tiles(problem_, visible_host(), rows), {}};
    if (order == TileOrder::longest_first) sort_longest_first(tiles.host);
    tiles.device = upload_to_keep(stream_, tiles.host);
    return tiles_.emplace(std::pair(rows, order), std::move(tiles)).first->second;
}

const PartsOfTiles& Layout::parts(int64_t rows, const TileCut& cut) const {
    const auto known = parts_.find({rows, cut});
    if (known != parts_.end()) return known->second;
    const TileParts made =
        cut_tiles(make_tiles(problem_, visible_host(), rows), problem_.queries(), cut);
    return parts_
        .emplace(std::pair(rows, cut),
                 PartsOfTiles{upload_to_keep(stream_, made.parts),
                              upload_to_keep(stream_, made.of_query), made.most, made.all})
        .first->second;
}

const Tensor<SequenceBlock, 1>& Layout::key_blocks() const {
    if (!key_blocks_) key_blocks_ = upload_to_keep(stream_, make_key_blocks(problem_));
    return *key_blocks_;
}

const Tensor<int64_t, 1>& Layout::key_starts() const {
    if (!key_starts_) key_starts_ = upload_to_keep(stream_, problem_.batch.cu_seqlens_k());
    return *key_starts_;
}

}  // namespace msa::cuda
