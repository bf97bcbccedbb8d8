// SPDX-License-Identifier: MIT
// Attention over single tokens, measured from dense attention: with its lse, the probability of
// each kept token is known, and their sum is what attention over them divides by.
#pragma once

#include <vector>

#include "core/backend.h"
#include "core/select/token_selector.h"

namespace msa::experiments::compare {

/// On the host.
struct DenseAttention {
    View<const float, 3> q;      // [Nq, Hq, dh]
    View<const float, 3> k;      // [Nk, Hkv, dh]
    View<const float, 3> v;      // [Nk, Hkv, dh]
    View<const float, 2> lse;    // [Nq, Hq] of dense attention
    View<const float, 1> sinks;  // [Hq]; absent: none
};

struct TokenAttention {
    Tensor<float, 3> out;    // [Nq, Hq, dh]; 0 where nothing is kept
    Tensor<double, 2> mass;  // [Nq, Hkv] share of dense attention, mean over the group's heads
};

/// Attention over each of the choices, on the host. A kept token weighs e^(Problem::logit(q . k) -
/// lse): scale and soft cap are dense attention's, and the weights of a row, with the sink's, are
/// divided by their own sum. The probability of a token that several choices keep is computed once,
/// and so is the sum of values over the tokens that the same choices keep. The result does not
/// depend on the threads; on what else is asked for it depends within the rounding of a sum in
/// another order.
/// What it gains over attend_tokens_there on the cpu backend, on one thread of a Xeon with AVX2
/// (256 queries over 2K keys, 8 heads of 64, to 64 queries over 32K keys, 64 heads of 128): 36
/// choices of 128, 256 and 512 tokens take 2.8 to 3.7 times less, a single choice 2.1 to 3.1 times.
std::vector<TokenAttention> attend_tokens(const Problem&, const DenseAttention&,
                                          const std::vector<KeptTokens>& choices, int threads);

/// The same for one choice by the backend, in whose space `in` is: attention over blocks of one
/// token. `lse` [Nq, Hq] of dense attention and `sinks` [Hq], which may be absent, on the host. The
/// mass is e^(lse of the kept - lse) less that of a sink.
TokenAttention attend_tokens_there(Backend&, const Problem&, const AttentionInput& in,
                                   View<const float, 2> lse, View<const float, 1> sinks,
                                   const KeptTokens& kept);

}  // namespace msa::experiments::compare
