// SPDX-License-Identifier: MIT
// For policies that keep the fewest blocks that cover a share p of a distribution over a query's
// blocks. Forced blocks come first, then the others by probability, ties to the lower id. A block
// is kept if those before it cover less than p.
#pragma once

#include <cstdint>
#include <vector>

#include "core/selection.h"
#include "core/tensor.h"

namespace msa {

/// Finds p for a budget. Groups may be added to from different threads.
class CoverBudget {
public:
    CoverBudget(const SelectionRule& rule, int64_t groups);
    /// Adds a distribution over the `blocks` blocks that `queries` queries see.
    void add(int64_t group, View<const float, 1> mass, int64_t blocks, int64_t queries = 1);
    /// [Hkv]: for each group the largest p, a multiple of 2^-16, at which its queries together keep
    /// no more blocks than their budgets.
    std::vector<double> largest_shares() const;
    const SelectionRule& rule() const { return rule_; }

private:
    SelectionRule rule_;
    Tensor<int64_t, 2> counts_;  // [Hkv, shares]: blocks that are kept only above that share
    std::vector<int64_t> room_;  // [Hkv] unforced blocks that its queries' budgets allow together
};

/// scores = mass of the blocks that cover `share`, -inf elsewhere.
void keep_covering(const SelectionRule& rule, double share, View<const float, 1> mass,
                   int64_t blocks, View<float, 1> scores);

}  // namespace msa
