// SPDX-License-Identifier: MIT
// How narrowly a selection is decided. Of a row (query, group), candidates are the visible blocks
// that the rule does not force and whose score is above -inf (NaN is not); of k slots f are left to
// them. Where there are more than f >= 1 candidates, the margin is
//   m = score of the f-th highest - score of the (f + 1)-th highest >= 0,
// and the row is `tied` where m = 0: age decides, not the indexer. It is `within` where m is at
// most twice what rounding may change a score by: another order of sums, batch or element type may
// then choose otherwise. It is `silent` where all candidates score alike: the indexer says nothing.
// silent implies tied, and tied implies within. Rows with no choice to make do not count.
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
    /// A chunk of queries: kinds [Nq], scores [Nq, Hkv, B], and rounding [Nq, Hkv], what a score of
    /// the row may be off by; absent: 0.
    void add(const Problem&, const SelectionRule&, std::span<const RowKind> kinds,
             View<const float, 3> scores, View<const double, 2> rounding = {});
    State state() const { return state_of(means_); }
    void join(const State& state) { join_means(means_, state); }

    // [Hkv] shares of the rows with a choice to make; NaN where there was none.
    std::vector<double> tied() const { return share(0); }
    std::vector<double> within() const { return share(1); }
    std::vector<double> silent() const { return share(2); }

private:
    std::vector<double> share(size_t which) const {
        return values(std::span(means_).subspan(which * groups_, groups_));
    }
    size_t groups_;
    std::vector<Mean> means_;  // tied of all groups, then within, then silent
};

/// [Nq, Hkv]: what scale * index_q . index_k may be off by at most where both operands were rounded
/// to `element`: (2 u + u^2) scale |index_q| max |index_k| over the keys that the query sees, u its
/// roundoff. Operands [Nq, Hkv, didx] and [Nk, didx].
Tensor<double, 2> index_score_rounding(const Problem&, View<const float, 3> index_q,
                                       View<const float, 2> index_k, Element element);

}  // namespace msa::analysis
