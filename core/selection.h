// SPDX-License-Identifier: MIT
// Which blocks a query keeps: the rule, and the invariants of the ids that every selector returns.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

/// Pads a row of ids that holds fewer than k blocks.
inline constexpr int32_t kNoBlock = -1;

/// The selection rule of eq:msa-topk. Of the k slots, the forced blocks that are visible take
/// theirs first; the rest go to the visible blocks of highest score.
struct SelectionRule {
    int64_t top_k = 16;        // k, forced blocks included
    int64_t forced_local = 1;  // newest visible blocks always kept; at least the local block
    int64_t forced_first = 0;  // oldest blocks always kept (tab:forced-sink-local)

    /// Throws InputError unless 1 <= forced_local, 0 <= forced_first and both fit in top_k.
    void validate() const;
    bool operator==(const SelectionRule&) const = default;
};

/// Is `block` forced for a query whose visible keys span `visible_blocks` blocks?
constexpr bool is_forced(const SelectionRule& rule, int64_t block, int64_t visible_blocks) {
    return block < rule.forced_first || block >= visible_blocks - rule.forced_local;
}

/// The ids of one (query, group): ascending, without the padding. Row of ids [Nq, Hkv, k].
std::span<const int32_t> selected(View<const int32_t, 3> ids, int64_t query, int64_t group);

/// ids [Nq, Hkv, B] that select every visible block: the full support.
Tensor<int32_t, 3> all_visible_blocks(const Problem&);

/// Throws InputError naming query, group and rule unless every row of ids [Nq, Hkv, k] is
/// ascending without repeats, visible to its query, and padded with kNoBlock at the end only.
void check_selection(const Problem&, View<const int32_t, 3> ids);

/// Checks ids selected by scores within `bound` of `scores` [Nq, Hkv, B]. Returns the fault, empty
/// if there is none. Required are the invariants of check_selection, every forced block, min(k,
/// candidates) blocks, and no kept block that scores more than 2 bound below a dropped one. So with
/// bound 0 the ids are those of select_blocks, including ties to the lower id.
std::string selection_fault(const Problem&, const SelectionRule&, View<const float, 3> scores,
                            View<const int32_t, 3> ids, double bound);

}  // namespace msa
