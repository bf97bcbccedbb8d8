// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/bench/operands.h"

namespace msa::experiments::bench {

/// The lse that a forward pass leaves for index_kl of some queries (LSE fusion).
struct GivenLse {
    Tensor<int32_t, 3> ids;  // [Nq, Hkv, k] of the selected support; absent: the full one
    Tensor<float, 2> main, index;
};

/// For the queries of `p`, with rows `q` and index.index_q, over the keys of `layer`. top_k 0: on
/// the full support.
GivenLse forward_lse(Backend&, const Problem& p, const Layer& layer, const Stored<3>& q,
                     const IndexInput& index, int64_t top_k);

/// Computes layer.index_lse of all queries on the full support: the lse of dense attention of the
/// Index Branch, with groups as query heads on one key head.
void full_index_lse(Backend&, const Problem& p, const IndexOperands&, Layer& layer);

}  // namespace msa::experiments::bench
