// SPDX-License-Identifier: MIT
// Where the queries of a packed batch are and what they see, on the device; and the few of these
// that a backend keeps from call to call.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/problem.h"
#include "core/tensor.h"
#include "gpu/query_tile.h"
#include "gpu/recent.h"
#include "gpu/runtime.h"

namespace msa::cuda {

enum class TileOrder : uint8_t {
    by_query,
    longest_first,  // so that the last to start are short
};

struct Tiles {
    std::vector<QueryTile> host;
    Tensor<QueryTile, 1> device;
};

void sort_longest_first(std::vector<QueryTile>& tiles);

class Layout {
public:
    Layout(const Problem&, std::shared_ptr<Stream>);

    /// Do the queries of this problem see the same keys, in the same blocks? Fast where the problem
    /// has the handle of this layout; other handles are compared entry by entry.
    bool fits(const Problem&) const;

    const std::vector<KeyRange>& visible_host() const { return visible_keys(problem_); }  // [Nq]
    const KeyRange* visible() const { return visible_.data(); }  // on the device
    /// Tiles of at most `rows` queries, none across sequences. Made once for each kind asked.
    const Tiles& tiles(int64_t rows, TileOrder) const;
    /// The blocks of all sequences, numbered through. Made once.
    const Tensor<SequenceBlock, 1>& key_blocks() const;

private:
    Problem problem_;
    std::shared_ptr<Stream> stream_;
    Tensor<KeyRange, 1> visible_;
    mutable std::map<std::pair<int64_t, TileOrder>, Tiles> tiles_;
    mutable std::optional<Tensor<SequenceBlock, 1>> key_blocks_;
};

/// The layouts used last, so that calls that alternate between a few problems (the steps of a
/// training, the pieces of a pass) copy nothing to the device. A layout shares the handle of the
/// batch that it was made of: a call with that handle finds it at once, and one with an equal
/// batch, made anew, by comparing.
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
    Recent<const Layout, kMost> layouts_;
};

}  // namespace msa::cuda
