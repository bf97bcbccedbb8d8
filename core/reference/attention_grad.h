// SPDX-License-Identifier: MIT
// The gradient of attention from the saved out and lse, one row (query, head) at a time. With
//   p = exp(scale q.k - lse),  dP = <d_out, v>,  D = <d_out, out>,  dS = p (dP - D)
// the row's d_q is scale sum dS k over its keys; a key's d_k and d_v are the sums of scale dS q and
// p d_out over its rows, and the gradient of a head's sink s is -sum exp(s - lse) D.
#pragma once

#include <vector>

#include "core/backend.h"

namespace msa::reference {

class AttentionGrad {
public:
    AttentionGrad(const Problem&, const AttentionInput&, const AttentionSaved&,
                  const AttentionGradient& to);

    /// For head h of query i, which attends to the packed keys `tokens`: stores its d_q and adds to
    /// the other sums.
    void add_row(int64_t i, int64_t h, const std::vector<int64_t>& tokens);
    /// Stores the sums over all rows.
    void finish();

private:
    const Problem& p_;
    View<const float, 3> q_, k_, v_;
    View<const float, 1> sinks_;
    View<const float, 3> out_;
    View<const float, 2> lse_;
    View<const float, 3> d_out_;
    AttentionGradient to_;
    std::vector<double> d_k_, d_v_, d_sinks_;
};

}  // namespace msa::reference
