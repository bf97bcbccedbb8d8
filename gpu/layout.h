// SPDX-License-Identifier: MIT
// Where the queries of a problem are and what they see, on the host and on the device. Calls in a
// row mostly share it, so the backend keeps the last one.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/problem.h"
#include "core/tensor.h"
#include "gpu/query_tile.h"
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

    /// Do the queries of this problem see the same keys?
    bool fits(const Problem&) const;

    const std::vector<KeyRange>& visible_host() const { return visible_host_; }  // [Nq]
    const KeyRange* visible() const { return visible_.data(); }                  // on the device
    /// Tiles of at most `rows` queries, none across sequences. Made once for each kind asked.
    const Tiles& tiles(int64_t rows, TileOrder) const;

private:
    Problem problem_;
    std::shared_ptr<Stream> stream_;
    std::vector<KeyRange> visible_host_;
    Tensor<KeyRange, 1> visible_;
    mutable std::map<std::pair<int64_t, TileOrder>, Tiles> tiles_;
};

}  // namespace msa::cuda
