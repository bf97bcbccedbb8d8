// SPDX-License-Identifier: MIT
// Means of neighbouring index keys, scored by the lightning indexer as keys of their own: what
// `qsa` and `dsa:compress` rank by, and what `hisa` looks at first.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/select/lightning.h"

namespace msa {

/// Pieces of `tokens` keys, side by side from the first key of each sequence on. A query sees those
/// that end at it or before.
class IndexPieces {
public:
    IndexPieces(const SelectorLayer&, const Mirror<2>& keys, int64_t tokens);

    /// (query, piece that it sees) pairs.
    static double seen(const Problem& phase, int64_t tokens);
    /// Calls visit(row, I) for every query, I [pieces it sees] on the host; from many threads.
    /// index_k of the operands stays unread.
    void for_each_row(Backend&, const Problem&, LightningOperands,
                      const std::function<void(int64_t row, View<const float, 1> scores)>&) const;
    /// The largest I of the pieces that reach into each block, [Nq, Hkv, B] on the host, the same
    /// for all groups; -inf where there is none. NaN is never the largest.
    Tensor<float, 3> block_scores(Backend&, const Problem&, LightningOperands) const;

private:
    int64_t tokens_;
    std::vector<int64_t> starts_;  // [S+1] first piece of each sequence
    Mirror<2> means_;              // [pieces, didx]
};

/// `of_keys`, which is charged for every visible key of all queries, where `scored` vectors are
/// scored in their place.
PolicyCost cost_of_scored(const PolicyCost& of_keys, const Problem& phase, double scored);

}  // namespace msa
