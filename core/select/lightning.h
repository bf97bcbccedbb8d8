// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>

#include "core/select/cost.h"
#include "core/select/policy.h"

namespace msa {

/// The lightning indexer's token scores I = sum over heads of max(0, index_q . index_k), the heads
/// of index_q weighted alike. Calls visit(row, I) for every query of the chunk, I [keys it sees] on
/// the host; from many threads.
void for_each_lightning_row(
    const SelectorLayer&, const SelectorChunk&,
    const std::function<void(int64_t row, View<const float, 1> scores)>& visit);

/// What the policies of the lightning indexer have in common, those that keep blocks
/// (Kind = Selector) and those that keep tokens (TokenSelector).
template <typename Kind>
class LightningPolicy : public Kind {
public:
    std::string_view note() const override {
        return "index heads weighted alike, on index_q and index_k that were trained for MSA's "
               "rule";
    }
    Family family() const override { return Family::index_branch; }
    PolicyNeeds needs() const override { return {.index = true}; }
    PolicyCost cost(const Problem& phase, int64_t) const override {
        return index_branch_cost(phase);
    }
};

}  // namespace msa
