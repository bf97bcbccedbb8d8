// SPDX-License-Identifier: MIT
#include "core/select/covering.h"

#include <algorithm>
#include <numeric>

#include "core/select/best_blocks.h"

namespace msa {
namespace {

constexpr int64_t kShares = int64_t{1} << 16;  // p is a multiple of 1 / kShares

/// A row's blocks in the order in which they are kept: forced ones, then by mass.
std::vector<int32_t> order_of(View<const float, 1> mass, int64_t blocks,
                              const SelectionRule& rule) {
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        const bool forced = is_forced(rule, a, blocks), other = is_forced(rule, b, blocks);
        if (forced != other) return forced;
        return mass(a) != mass(b) ? mass(a) > mass(b) : a < b;
    });
    return order;
}

/// Calls visit(block, before) for the blocks of a row in that order; `before`: the share that those
/// before it cover, -1 for a forced block. A block is kept where before < p.
template <typename Visit>
void for_each_kept(View<const float, 1> mass, int64_t blocks, const SelectionRule& rule,
                   Visit visit) {
    double sum = 0;
    for (int32_t b : order_of(mass, blocks, rule)) {
        visit(b, is_forced(rule, b, blocks) ? -1.0 : sum);
        sum += double{mass(b)};
    }
}

}  // namespace

CoverBudget::CoverBudget(const SelectionRule& rule, int64_t groups)
    : rule_(rule), counts_({groups, kShares + 1}), room_(static_cast<size_t>(groups), 0) {}

void CoverBudget::add(int64_t group, View<const float, 1> mass, int64_t blocks, int64_t queries) {
    int64_t& left = room_[static_cast<size_t>(group)];
    left += queries * std::min(blocks, rule_.top_k);
    for_each_kept(mass, blocks, rule_, [&](int32_t, double before) {
        if (before < 0)
            left -= queries;
        else if (before < 1)
            counts_(group, static_cast<int64_t>(before * kShares)) += queries;
    });
}

std::vector<double> CoverBudget::largest_shares() const {
    std::vector<double> shares;
    for (int64_t r = 0; r < counts_.extent(0); ++r) {
        int64_t share = 0, left = room_[static_cast<size_t>(r)];
        while (share < kShares && counts_(r, share) <= left) left -= counts_(r, share++);
        shares.push_back(static_cast<double>(share) / static_cast<double>(kShares));
    }
    return shares;
}

void keep_covering(const SelectionRule& rule, double share, View<const float, 1> mass,
                   int64_t blocks, View<float, 1> scores) {
    for_each_kept(mass, blocks, rule, [&](int32_t b, double before) {
        scores(b) = before < share ? mass(b) : kLeftOut;
    });
}

}  // namespace msa
