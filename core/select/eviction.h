// SPDX-License-Identifier: MIT
// Policies that evict blocks for good: no later query sees a block that the current query does not
// keep. Plain host code, query by query, over P_b.
#pragma once

#include <map>

#include "core/select/per_rule.h"
#include "core/select/selector.h"

namespace msa {

class EvictingSelector : public Selector {
public:
    Family family() const override { return Family::queries; }
    /// The attention that these policies use is computed anyway.
    PolicyCost do_cost(const Phase&) const override { return {}; }
    void prepare(const SelectorLayer&) override;
    /// The attention that each block has received before the query; -inf if it was evicted.
    Mirror<3> score(const SelectorLayer&, const SelectorChunk&) override;

protected:
    /// The attention that the blocks [Hkv, B] of a sequence have received before its first query of
    /// the phase.
    virtual Tensor<float, 2> begin(const SelectorLayer&, int64_t sequence) const = 0;
    /// The attention that a kept block has received after a query, from that `before` it and the
    /// query's `share`: its attention to the block, normalised over the kept blocks.
    virtual float receive(float before, float share) const = 0;

private:
    /// The surviving blocks of a sequence at one budget.
    struct Cache {
        int64_t sequence = -1;
        Tensor<float, 2> received;  // [Hkv, B]
    };

    /// begin(), computed once for all budgets.
    const Tensor<float, 2>& begun(const SelectorLayer&, int64_t sequence);
    /// Processes one query of one group that sees `blocks` blocks.
    void step(const SelectionRule&, int64_t blocks, View<const float, 1> mass,
              View<float, 1> received) const;

    PerRule<Cache> caches_;
    std::map<int64_t, Tensor<float, 2>> begun_;  // of the sequences
};

}  // namespace msa
