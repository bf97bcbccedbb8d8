// SPDX-License-Identifier: MIT
// Attention sinks (fig:attention-sink): mean probability that a head puts on the first tokens of
// the sequence, over all rows that see a key. For dense attention, or for sparse attention on its
// support: then a token outside the selected blocks has probability 0, and the softmax is
// normalised by the sparse lse. Tokens before a query's window have probability 0, and the lse
// includes learnable sinks. The mean is NaN (undefined) if logits are so large that the rounding of
// a float lse alone changes probabilities by more than 1 %.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/rows.h"
#include "core/tensor.h"

namespace msa::analysis {

class SinkMass {
public:
    /// Watches the first `tokens` tokens of each sequence, at least 1.
    SinkMass(int64_t query_heads, int64_t tokens);

    /// [Nq, Hq, tokens] The logits of a chunk of queries at these tokens, the same for every
    /// support: q [Nq, Hq, dh], k [Nk, Hkv, dh]. 0 where a query sees no such token.
    Tensor<double, 3> logits(const Problem&, View<const float, 3> q, View<const float, 3> k) const;
    /// Adds a chunk: its logits(), lse [Nq, Hq] of the measured attention, and ids [Nq, Hkv, k] of
    /// its support (absent: dense). `kinds` [Nq] says which queries count; empty: all.
    void add(const Problem&, View<const double, 3> logits, View<const float, 2> lse,
             View<const int32_t, 3> ids, std::span<const RowKind> kinds = {});

    State state() const { return state_of(means_); }
    void join(const State& state) { join_means(means_, state); }

    std::vector<double> first_token() const;   // [Hq]
    std::vector<double> first_tokens() const;  // [Hq]

private:
    int64_t tokens_;
    std::vector<Mean> means_;  // [2 * Hq]: of the first token, then of the first tokens
};

/// [Hq] Mean probability exp(sink - lse) of learnable sinks [Hq], for attention whose lse [Nq, Hq]
/// includes them. Both on the host. NaN without rows.
std::vector<double> learned_sink_mass(View<const float, 1> sinks, View<const float, 2> lse);

}  // namespace msa::analysis
