// SPDX-License-Identifier: MIT
// Policies that evict blocks one query after the other, for good: what the current query does not
// keep, no later query sees. Eviction goes block by block and query by query: plain host code over
// the fetched P_b.
#pragma once

#include <map>

#include "core/select/per_rule.h"
#include "core/select/selector.h"

namespace msa {

class EvictingSelector : public Selector {
public:
    Family family() const override { return Family::queries; }
    /// The attention that it looks at is paid anyway.
    PolicyCost cost(const Problem&, int64_t) const override { return {}; }
    void prepare(const SelectorLayer&) override;
    /// What each block has received before the query; -inf where it is gone.
    Mirror<3> score(const SelectorLayer&, const SelectorChunk&) override;

protected:
    /// What the blocks [Hkv, B] of a sequence have received before its first query of the phase.
    virtual Tensor<float, 2> begin(const SelectorLayer&, int64_t sequence) const = 0;
    /// What a block that received `before` and is kept for a query has received after it; `share`:
    /// the query's attention to the block, normalised over the blocks that are kept.
    virtual float receive(float before, float share) const = 0;

private:
    /// What is left of a sequence at one budget.
    struct Cache {
        int64_t sequence = -1;
        Tensor<float, 2> received;  // [Hkv, B]
    };

    /// begin(), which all budgets have in common.
    const Tensor<float, 2>& begun(const SelectorLayer&, int64_t sequence);
    /// One query of one group, which sees `blocks`.
    void step(const SelectionRule&, int64_t blocks, View<const float, 1> mass,
              View<float, 1> received) const;

    PerRule<Cache> caches_;
    std::map<int64_t, Tensor<float, 2>> begun_;  // of the sequences
};

}  // namespace msa
