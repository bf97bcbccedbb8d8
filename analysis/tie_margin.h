// SPDX-License-Identifier: MIT
// How narrowly a selection is decided. The candidates of a row (query, group) are its visible,
// unforced blocks with a score above -inf (NaN is not); f of the k slots are left to them. If there
// are more than f >= 1 candidates, the margin is
//   m = score of the f-th highest - score of the (f + 1)-th highest >= 0,
// and the row is `tied` if m = 0: the block ids decide, not the scores. It is
// `tied_by_rounding` if m is at most twice the error of a score's float sum: another order of that
// sum, as in another batch, may then select other blocks. It is `all_tied` if all candidates have
// the same score. all_tied implies tied, and tied implies tied_by_rounding. Rows with no choice to
// make do not count.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/rows.h"
#include "core/selection.h"
#include "core/tensor.h"

namespace msa::analysis {

class TieMargin {
public:
    explicit TieMargin(int64_t groups);
    /// A chunk of queries: kinds [Nq], scores [Nq, Hkv, B], and rounding [Nq, Hkv], the largest
    /// error of a score of the row; absent: 0.
    void add(const Problem&, const SelectionRule&, std::span<const RowKind> kinds,
             View<const float, 3> scores, View<const double, 2> rounding = {});
    State state() const { return state_of(means_); }
    void join(const State& state) { join_means(means_, state); }

    // [Hkv] shares of the rows with a choice to make; NaN if there was none.
    std::vector<double> tied() const { return share(0); }
    std::vector<double> tied_by_rounding() const { return share(1); }
    std::vector<double> all_tied() const { return share(2); }

private:
    std::vector<double> share(size_t which) const {
        return values(std::span(means_).subspan(which * groups_, groups_));
    }
    size_t groups_;
    std::vector<Mean> means_;  // tied of all groups, then by rounding, then all tied
};

/// [Nq, Hkv]: logit_bound (core/tolerance.h) of scale * index_q . index_k with the longest of the
/// keys that the query sees: how far a float sum of the operands as they are stored, in any order,
/// is off. Operands [Nq, Hkv, didx] and [Nk, didx].
Tensor<double, 2> index_score_rounding(const Problem&, View<const float, 3> index_q,
                                       View<const float, 2> index_k);

}  // namespace msa::analysis
