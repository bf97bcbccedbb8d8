// SPDX-License-Identifier: MIT
// Entropy of the attention distribution, in nats, without the distribution: with p the softmax of
// the logits s over a support,
//   H = -sum_j p_j ln p_j = lse - sum_j p_j s_j = lse - scale * q . (sum_j p_j k_j),
// and the last sum is the output of the same attention with v := k. The difference cancels where a
// head looks at one key: H is good to about the float rounding of lse, and is never below 0. Where
// logits are so large that this rounding alone may change H by more than 0.01 nats, H is NaN:
// undefined. A NaN that a row sees makes its H NaN.
//
// A learnable sink is one more place that probability goes to: p_sink = exp(sink - lse) takes part
// with its logit, the sink. Capped logits are no such product of a mean key: H is NaN, undefined.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/rows.h"
#include "core/tensor.h"

namespace msa::analysis {

class Entropy {
public:
    explicit Entropy(int64_t query_heads);

    /// A chunk of queries: q [Nq, Hq, dh]; mean_key [Nq, Hq, dh] and lse [Nq, Hq] as attention with
    /// v := k gives them, dense or sparse, with `sinks` [Hq] on the host, absent: none. Rows with
    /// an empty support (lse -inf) do not count.
    void add(const Problem&, View<const float, 3> q, View<const float, 3> mean_key,
             View<const float, 2> lse, View<const float, 1> sinks = {});

    State state() const { return state_of(entropy_); }
    void join(const State& state) { join_means(entropy_, state); }

    std::vector<double> nats() const { return values(entropy_); }  // [Hq]

private:
    std::vector<Mean> entropy_;
};

}  // namespace msa::analysis
