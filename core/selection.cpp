// SPDX-License-Identifier: MIT
#include "core/selection.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace msa {

void SelectionRule::validate() const {
    require(top_k >= 1, "top_k is ", top_k, ", must be at least 1");
    require(forced_local >= 1, "forced_local is ", forced_local,
            ", must be at least 1: the local block is always kept");
    require(forced_first >= 0, "forced_first is ", forced_first, ", must not be negative");
    require(forced_local + forced_first <= top_k, "forced_local + forced_first is ",
            forced_local + forced_first, ", must not exceed top_k = ", top_k);
}

std::span<const int32_t> selected(View<const int32_t, 3> ids, int64_t query, int64_t group) {
    const View<const int32_t, 1> row = ids[query][group];
    const int32_t* end = row.data() + row.size();
    return {row.data(), std::find(row.data(), end, kNoBlock)};
}

Tensor<int32_t, 3> all_visible_blocks(const Problem& p) {
    Tensor<int32_t, 3> ids({p.queries(), p.kv_heads, std::max<int64_t>(1, p.blocks())});
    std::fill_n(ids.data(), ids.size(), kNoBlock);
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < ids.extent(0); ++i)
        for (int64_t r = 0; r < ids.extent(1); ++r)
            std::iota(
                &ids(i, r, 0),
                &ids(i, r, 0) + visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size),
                0);
    return ids;
}

void check_selection(const Problem& p, View<const int32_t, 3> ids) {
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < ids.extent(0); ++i) {
        const int64_t blocks = visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size);
        for (int64_t r = 0; r < ids.extent(1); ++r) {
            const std::span<const int32_t> kept = selected(ids, i, r);
            const auto fail = [&](int64_t slot, const char* rule) {
                throw InputError(text("ids[", i, ", ", r, ", ", slot, "] is ", ids(i, r, slot),
                                      ", ", rule, " (the query sees ", blocks, " blocks)"));
            };
            for (int64_t slot = 0; slot < ids.extent(2); ++slot) {
                const int32_t id = ids(i, r, slot);
                if (slot >= static_cast<int64_t>(kept.size())) {
                    if (id != kNoBlock) fail(slot, "but -1 may only be followed by -1");
                } else if (id < 0 || id >= blocks) {
                    fail(slot, "must be a visible block");
                } else if (slot > 0 && id <= ids(i, r, slot - 1)) {
                    fail(slot, "must be above the id before it");
                }
            }
        }
    }
}

}  // namespace msa
