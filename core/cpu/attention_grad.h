// SPDX-License-Identifier: MIT
// The gradient of attention over selected blocks, in two forms. With the letters of
// core/reference/attention_grad.h, for a row (query, head) and a block of keys:
//   by block   the block gathers its queries through the reverse index: S and dP, then its d_v +=
//   P^T
//              d_out and d_k += dS^T q, and each query's dS k to a slot, which a second phase adds
//              up: 5 products
//   by query   a tile of queries walks the union of its blocks: S and dP again, d_q += dS k: 3 more
// Every sum has one owner and one order, so results do not depend on threads.
#pragma once

#include "core/backend.h"

namespace msa::cpu {

class AttentionGrad {
public:
    /// Makes d_sinks, and zeros of the other results.
    AttentionGrad(const Problem&, const AttentionInput&, const AttentionSaved&,
                  const AttentionGradient& to, int threads);

    /// Of what a pass by block adds up.
    enum class Sums : uint8_t { keys, keys_and_queries };
    /// Adds what the queries `range`, each over its blocks ids [n, Hkv, k], give to d_k and d_v,
    /// and, through slots [n, Hq, k, dh], to d_q. Blocks are of `block_size` keys.
    void add_by_block(QueryRange range, View<const int32_t, 3> ids, int64_t block_size, Sums);
    /// Adds to d_q what all queries, each over its blocks ids [Nq, Hkv, k], give; tiles of at most
    /// `tile_queries` queries.
    void add_by_query(View<const int32_t, 3> ids, int64_t tile_queries);

    /// Queries whose slots, `slots` each, are in memory together.
    int64_t piece_queries(int64_t slots) const;

private:
    const Problem& p_;
    View<const float, 3> q_, k_, v_, d_out_;
    View<float, 3> d_q_, d_k_, d_v_;
    int threads_;
    Tensor<float, 2> lse_;    // [Nq, Hq] in base 2; NaN where D is
    Tensor<float, 2> d_;      // [Nq, Hq] D
    Tensor<float, 1> slots_;  // grows to what a piece needs
};

}  // namespace msa::cpu
