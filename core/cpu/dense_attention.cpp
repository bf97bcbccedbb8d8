// SPDX-License-Identifier: MIT
// eq:softmax-attention: a tile of (query, head) rows of one group walks its keys once.
#include <algorithm>
#include <cmath>

#include "core/cpu/cpu_backend.h"
#include "core/cpu/tile.h"
#include "core/cpu/workspace.h"

namespace msa::cpu {
namespace {

constexpr int64_t kTileRows = 32 * kStrip, kTileKeys = 128;

struct Attention {
    const Problem& p;
    const std::vector<KeyRange> visible = visible_keys(p);
    View<const float, 3> q, k, v;
    View<float, 3> out;
    View<float, 2> lse;

    int64_t group_size = p.group_size(), dims = p.head_dim, out_stride = padded(dims);
    int64_t tile_queries = std::max<int64_t>(1, kTileRows / group_size);
    int64_t tile_rows = tile_queries * group_size;

    int64_t workspace_floats() const {
        return tile_rows * (dims + out_stride + 2) + panel_floats(dims, kTileKeys) +
               panel_floats(kTileKeys, dims) + kStrip * kTileKeys;
    }
};

}  // namespace
}  // namespace msa::cpu
