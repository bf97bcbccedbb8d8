// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/select/cost.h"
#include "core/select/policy.h"

namespace msa {

/// Operands of the lightning indexer's score I = sum over heads of w max(0, index_q . index_k). The
/// positive factor of core/indexer/lightning_kl.h is left out, as it changes no order.
struct LightningOperands {
    Mirror<3> index_q;         // [Nq, H, didx]
    Mirror<2> index_k;         // [Nk, didx]
    Tensor<float, 3> weights;  // [Nq, 1, H] on the host; absent: all are 1
};

/// Values per query that I reads: the channels of all heads, and their learned weights.
inline int64_t lightning_query_width(const Problem& p, const LearnedSizes& of) {
    return of.dsa_heads > 0 ? of.dsa_heads * (of.dsa_dim + 1) : p.kv_heads * p.index_dim;
}

/// Calls visit(row, I) for every query, I [keys it sees] on the host, from several threads.
void for_each_lightning_row(
    Backend&, const Problem&, const LightningOperands&,
    const std::function<void(int64_t row, View<const float, 1> scores)>& visit);

/// The largest I of each block's visible tokens, [Nq, Hkv, B] on the host, the same for all groups.
/// Blocks that a query does not see are not written.
Tensor<float, 3> lightning_block_scores(Backend&, const Problem&, const LightningOperands&);

/// The positions of the `count` highest `scores`, ascending. Ties go to the lower position; NaN
/// counts as -inf.
std::vector<int64_t> highest(View<const float, 1> scores, int64_t count);

/// Reads a layer's learned operands, or if it has none the Index Branch's with weights 1.
class LightningReader {
public:
    void prepare(const SelectorLayer&);
    LightningOperands operands(const SelectorLayer&, const SelectorChunk&) const;
    const Mirror<2>& keys(const SelectorLayer& layer) const {
        return layer.learned.dsa_heads == 0 ? layer.index_k : keys_;
    }

private:
    Mirror<2> keys_;  // learned
};

/// Base of the lightning indexer's policies, which keep blocks (Kind = Selector) or tokens
/// (TokenSelector).
template <typename Kind>
class LightningPolicy : public Kind {
public:
    std::string_view note() const override {
        return "where the layer has no dsa_q, dsa_k and dsa_w, index heads are weighted alike, on "
               "index_q and index_k that were trained for MSA's rule";
    }
    Family family() const override { return Family::index_branch; }
    PolicyNeeds needs() const override { return {.lightning = true}; }
    PolicyCost do_cost(const Phase& phase) const override {
        return phase.learned.dsa_heads > 0 ? lightning_cost(phase.problem, phase.learned)
                                           : index_branch_cost(phase.problem);
    }
    void prepare(const SelectorLayer& layer) override { reader_.prepare(layer); }

protected:
    LightningReader reader_;
};

}  // namespace msa
