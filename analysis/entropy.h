// SPDX-License-Identifier: MIT
// Entropy of the attention distribution, in nats, computed without its probabilities: with p the
// softmax of the logits s over a support,
//   H = -sum_j p_j ln p_j = lse - sum_j p_j s_j = lse - scale * q . (sum_j p_j k_j),
// and the last sum is the output of the same attention with v := k. The difference cancels if a
// head attends to one key: H is accurate to about the float rounding of lse, and is never below 0.
// H is NaN (undefined) if logits are so large that this rounding may change H by more than 0.01
// nats. A NaN that a row sees makes its H NaN.
//
// A learnable sink is one more outcome, with p_sink = exp(sink - lse) and the sink as its logit.
// With a soft cap the formula does not hold, so H is NaN.
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
