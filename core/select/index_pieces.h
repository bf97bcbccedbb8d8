// SPDX-License-Identifier: MIT
// Means of neighbouring index keys, scored by the lightning indexer like keys. `qsa` and
// `dsa:compress` rank by them; `hisa` uses them for its first stage.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/select/lightning.h"

namespace msa {

/// Adjacent pieces of `tokens` keys from the first key of each sequence on. A query sees the pieces
/// that end at or before it.
class IndexPieces {
public:
    IndexPieces(const SelectorLayer&, const Mirror<2>& keys, int64_t tokens);
    /// The same of given keys [pieces, didx] in place of means. Throws InputError unless there is
    /// one for each piece.
    IndexPieces(const SelectorLayer&, Tensor<float, 2> of_pieces, int64_t tokens);

    /// (query, piece that it sees) pairs.
    static double seen(const Problem& phase, int64_t tokens);
    /// Calls visit(row, I) for every query, I [pieces it sees] on the host, from several threads.
    /// Does not read index_k of the operands.
    void for_each_row(Backend&, const Problem&, LightningOperands,
                      const std::function<void(int64_t row, View<const float, 1> scores)>&) const;
    /// The largest I of the pieces that reach into each block, [Nq, Hkv, B] on the host, the same
    /// for all groups; -inf if there is none. NaN is never the largest.
    Tensor<float, 3> block_scores(Backend&, const Problem&, LightningOperands) const;
    /// QSA's: the same, and inf for the blocks of the unfinished tail.
    Tensor<float, 3> qsa_scores(Backend&, const Problem&, LightningOperands) const;
    /// The first of the `visible` keys of a query that no complete piece holds.
    int64_t tail_of(int64_t visible) const { return visible - visible % tokens_; }

private:
    int64_t tokens_;
    std::vector<int64_t> starts_;  // [S+1] first piece of each sequence
    Mirror<2> means_;              // [pieces, didx]
};

/// The cost `of_keys`, which covers every visible key of all queries, rescaled to `scored` vectors.
PolicyCost cost_of_scored(const PolicyCost& of_keys, const Problem& phase, double scored);

}  // namespace msa
