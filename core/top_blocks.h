// SPDX-License-Identifier: MIT
// eq:msa-topk for one row, one block at a time.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "core/selection.h"

namespace msa {

/// Takes the visible blocks of a row in ascending order and keeps those that the rule selects.
class TopBlocks {
public:
    explicit TopBlocks(const SelectionRule& rule) : rule_(rule) {
        kept_.reserve(static_cast<size_t>(rule.top_k));
    }

    /// Clears the list; the next row sees `blocks` blocks.
    void start(int64_t blocks) {
        kept_.clear();
        blocks_ = blocks;
        oldest_local_ = std::max<int64_t>(0, blocks - rule_.forced_local);
        forced_first_ = std::min(rule_.forced_first, oldest_local_);
        free_ = rule_.top_k - forced_first_ - (blocks - oldest_local_);
    }

    void offer(int64_t block, float score) {
        if (is_forced(rule_, block, blocks_) || !(score > kNever)) return;  // or NaN
        if (static_cast<int64_t>(kept_.size()) == free_) {
            if (free_ == 0 || !(score > kept_.front().score)) return;
            std::pop_heap(kept_.begin(), kept_.end(), better);
            kept_.pop_back();
        }
        kept_.push_back({score, static_cast<int32_t>(block)});
        std::push_heap(kept_.begin(), kept_.end(), better);
    }

    /// Writes ids [k] of the row.
    void finish(View<int32_t, 1> ids) const {
        int32_t* end = ids.data();
        for (int64_t b = 0; b < forced_first_; ++b) *end++ = static_cast<int32_t>(b);
        for (const Scored& block : kept_) *end++ = block.id;
        std::sort(ids.data(), end);
        for (int64_t b = oldest_local_; b < blocks_; ++b) *end++ = static_cast<int32_t>(b);
        std::fill(end, ids.data() + ids.size(), kNoBlock);
    }

private:
    static constexpr float kNever = -std::numeric_limits<float>::infinity();
    struct Scored {
        float score;
        int32_t id;
    };
    /// Ties go to the lower id.
    static bool better(const Scored& a, const Scored& b) {
        return a.score > b.score || (a.score == b.score && a.id < b.id);
    }

    SelectionRule rule_;
    int64_t blocks_ = 0;
    int64_t forced_first_ = 0, oldest_local_ = 0;  // forced: below the first, from the second on
    int64_t free_ = 0;                             // slots that no forced block takes
    std::vector<Scored> kept_;                     // a heap, its worst in front
};

}  // namespace msa
