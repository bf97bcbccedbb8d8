// SPDX-License-Identifier: MIT
#include "core/selection.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace msa {
namespace {

/// selection_fault() of one row, whose query sees `blocks` blocks.
std::string row_fault(const SelectionRule& rule, int64_t blocks, View<const float, 1> scores,
                      std::span<const int32_t> kept, double bound) {
    int64_t candidates = 0;
    // The weakest kept and the strongest dropped free block, by (score, lower id first).
    int64_t weakest = -1, strongest = -1;
    const auto better = [&](int64_t a, int64_t b) {
        return scores(a) > scores(b) || (scores(a) == scores(b) && a < b);
    };
    for (int64_t b = 0; b < blocks; ++b) {
        const bool in = std::binary_search(kept.begin(), kept.end(), b);
        if (is_forced(rule, b, blocks)) {
            ++candidates;
            if (!in) return concat("forced block ", b, " is missing");
        } else if (scores(b) > -std::numeric_limits<float>::infinity()) {
            ++candidates;
            if (in && (weakest < 0 || better(weakest, b))) weakest = b;
            if (!in && (strongest < 0 || better(b, strongest))) strongest = b;
        } else if (in) {
            return concat("block ", b, " without a score is kept");
        }
    }
    if (std::ssize(kept) != std::min(rule.top_k, candidates))
        return concat(kept.size(), " blocks kept of ", candidates, " candidates, k ", rule.top_k);
    if (weakest < 0 || strongest < 0 || better(weakest, strongest)) return "";
    const double gap = double{scores(strongest)} - double{scores(weakest)};
    if (bound != 0 && gap <= 2 * bound) return "";
    return concat("kept block ", weakest, " with score ", scores(weakest), " instead of block ",
                  strongest, " with ", scores(strongest), ", bound ", bound);
}

}  // namespace

void SelectionRule::validate() const {
    require(top_k >= 1, "top_k is ", top_k, ", must be at least 1");
    require(forced_local >= 1, "forced_local is ", forced_local,
            ", must be at least 1: the local block is always kept");
    require(forced_first >= 0, "forced_first is ", forced_first, ", must not be negative");
    const uint64_t forced =
        static_cast<uint64_t>(forced_local) + static_cast<uint64_t>(forced_first);
    require(forced <= static_cast<uint64_t>(top_k), "forced_local + forced_first is ", forced,
            ", must not exceed top_k = ", top_k);
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
                throw InputError(concat("ids[", i, ", ", r, ", ", slot, "] is ", ids(i, r, slot),
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

std::string selection_fault(const Problem& p, const SelectionRule& rule,
                            View<const float, 3> scores, View<const int32_t, 3> ids, double bound) {
    try {
        check_selection(p, ids);
    } catch (const InputError& broken) {
        return broken.what();
    }
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const int64_t seen = visible[static_cast<size_t>(i)].count;
            const std::string fault = row_fault(rule, visible_blocks(seen, p.block_size),
                                                scores[i][r], selected(ids, i, r), bound);
            if (!fault.empty()) return concat("query ", i, ", group ", r, ": ", fault);
        }
    return "";
}

}  // namespace msa
