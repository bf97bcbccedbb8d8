// SPDX-License-Identifier: MIT
// The layout of a packed batch on the device (positions of the queries, visible keys), and a
// backend's cache of layouts.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/keys.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "gpu/lru_cache.h"
#include "gpu/query_tile.h"
#include "gpu/runtime.h"
#include "gpu/tile_parts.h"

namespace msa::cuda {

enum class TileOrder : uint8_t {
    by_query,
    longest_first,  // so the last to start are short
};

struct Tiles {
    std::vector<QueryTile> host;
    Tensor<QueryTile, 1> device;
};

/// TileParts on the device.
struct PartsOfTiles {
    Tensor<TilePart, 1> parts;
    Tensor<QueryParts, 1> of_query;
    int most;
    int64_t all;
};

void sort_longest_first(std::vector<QueryTile>& tiles);

class Layout {
public:
    Layout(const Problem&, std::shared_ptr<Stream>);

    /// Whether the queries of this problem see the same keys in the same blocks. Fast if the
    /// problem has this layout's handle; other handles are compared entry by entry.
    bool fits(const Problem&) const;

    const std::vector<KeyRange>& visible_host() const { return visible_keys(problem_); }  // [Nq]
    const KeyRange* visible() const { return visible_.data(); }  // on the device
    /// Tiles of at most `rows` queries, none across sequences. Cached by arguments.
    const Tiles& tiles(int64_t rows, TileOrder) const;
    /// The parts of tiles of at most `rows` queries. Cached by arguments.
    const PartsOfTiles& parts(int64_t rows, const TileCut&) const;
    /// The blocks of all sequences, in order. Cached.
    const Tensor<SequenceBlock, 1>& key_blocks() const;
    /// cu_seqlens_k. Cached.
    const Tensor<int64_t, 1>& key_starts() const;

private:
    Problem problem_;
    std::shared_ptr<Stream> stream_;
    Tensor<KeyRange, 1> visible_;
    mutable std::map<std::pair<int64_t, TileOrder>, Tiles> tiles_;
    mutable std::map<std::pair<int64_t, TileCut>, PartsOfTiles> parts_;
    mutable std::optional<Tensor<SequenceBlock, 1>> key_blocks_;
    mutable std::optional<Tensor<int64_t, 1>> key_starts_;
};

/// Layout::key_starts() for keys in pages; null for packed ones, whose kernels need none.
template <int Rank>
const int64_t* key_starts(const Layout* layout, const Keys<Rank>& keys) {
    return keys.paged() ? layout->key_starts().data() : nullptr;
}

/// The layouts used last. Calls that alternate between a few problems (training steps, pieces of a
/// pass) thus copy nothing to the device. A layout shares its batch's handle: a call with that
/// handle finds it in constant time, a call with an equal batch by comparing.
class LayoutCache {
public:
    static constexpr size_t kMost = 8;

    explicit LayoutCache(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}

    std::shared_ptr<const Layout> of(const Problem& p) {
        return layouts_.get([&](const Layout& layout) { return layout.fits(p); },
                            [&] { return std::make_shared<const Layout>(p, stream_); });
    }

private:
    std::shared_ptr<Stream> stream_;
    LruCache<const Layout, kMost> layouts_;
};

}  // namespace msa::cuda
