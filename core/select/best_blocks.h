// SPDX-License-Identifier: MIT
// For policies that spend their budget of blocks before eq:msa-topk: the best unforced blocks that
// the budget has room for. Ties go to the lower id, as in core/top_blocks.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/selection.h"

namespace msa {

/// The score of a block outside the budget, which is never selected.
inline constexpr float kLeftOut = -std::numeric_limits<float>::infinity();

/// Sort key of a score; NaN counts as -inf.
template <std::floating_point T>
T rank_of(T score) {
    return std::isnan(score) ? T{kLeftOut} : score;
}

/// The visible blocks that the rule does not force, ascending.
inline std::vector<int64_t> free_blocks(const SelectionRule& rule, int64_t blocks) {
    std::vector<int64_t> free;
    for (int64_t b = 0; b < blocks; ++b)
        if (!is_forced(rule, b, blocks)) free.push_back(b);
    return free;
}

/// The blocks outside the best `room` of `blocks` (ascending), in no order.
template <class Value>
std::vector<int64_t> all_but_best(std::vector<int64_t> blocks, int64_t room, Value value) {
    const auto kept = blocks.begin() + std::clamp<int64_t>(room, 0, std::ssize(blocks));
    std::nth_element(blocks.begin(), kept, blocks.end(), [&](int64_t a, int64_t b) {
        const auto of_a = rank_of(value(a)), of_b = rank_of(value(b));
        return of_a != of_b ? of_a > of_b : a < b;
    });
    blocks.erase(blocks.begin(), kept);
    return blocks;
}

/// The visible, unforced blocks that the rule has no room for, in no order.
template <class Value>
std::vector<int64_t> beyond_budget(const SelectionRule& rule, int64_t blocks, Value value) {
    std::vector<int64_t> free = free_blocks(rule, blocks);
    const int64_t forced = blocks - std::ssize(free);
    return all_but_best(std::move(free), rule.top_k - forced, value);
}

}  // namespace msa
