// SPDX-License-Identifier: MIT
// What policies have in common that keep the fewest blocks that cover a share p of a distribution
// over a query's blocks: forced blocks are in, the others follow by probability, of equal ones the
// lower; a block is kept where those before it cover less than p.
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
    /// A distribution over the `blocks` blocks that `queries` queries see.
    void add(int64_t group, View<const float, 1> mass, int64_t blocks, int64_t queries = 1);
    /// [Hkv]: of each group the largest p, a multiple of 2^-16, at which the queries keep no more
    /// blocks than their budgets together.
    std::vector<double> largest_shares() const;
    const SelectionRule& rule() const { return rule_; }

private:
    SelectionRule rule_;
    Tensor<int64_t, 2> counts_;  // [Hkv, shares]: blocks that ask for a share to be passed
    std::vector<int64_t> room_;  // [Hkv] blocks of the budgets that are not forced
};

/// scores = mass of the blocks that cover `share`, -inf elsewhere.
void keep_covering(const SelectionRule& rule, double share, View<const float, 1> mass,
                   int64_t blocks, View<float, 1> scores);

}  // namespace msa
