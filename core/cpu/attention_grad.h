// SPDX-License-Identifier: MIT
// The gradient of attention over selected blocks, in two forms. Letters as in
// core/reference/attention_grad.h; a row is a (query, head).
//   by block   A block gathers its queries through the reverse index and computes S and dP. It adds
//              P^T d_out to its d_v and dS^T q to its d_k. Each query's dS k goes to a slot; a
//              second phase adds the slots to d_q. 5 products.
//   by query   A tile of queries walks the union of its blocks, computes S and dP again, and adds
//              dS k to d_q: 3 more products.
// Every sum has one owner and one order, so results do not depend on threads.
#pragma once

#include "core/backend.h"

namespace msa::cpu {

class AttentionGrad {
public:
    /// Computes d_sinks and fills the other results with zeros.
    AttentionGrad(const Problem&, const AttentionInput&, const AttentionSaved&,
                  const AttentionGradient& to, int threads);

    /// The gradients that a pass by block adds to.
    enum class Sums : uint8_t { keys, keys_and_queries };
    /// Adds the contributions of the queries `range`, each over its blocks ids [n, Hkv, k], to d_k
    /// and d_v and, through slots [n, Hq, k, dh], to d_q. Blocks have `block_size` keys.
    void add_by_block(QueryRange range, View<const int32_t, 3> ids, int64_t block_size, Sums);
    /// Adds the contributions of all queries, each over its blocks ids [Nq, Hkv, k], to d_q. A tile
    /// has at most `tile_queries` queries.
    void add_by_query(View<const int32_t, 3> ids, int64_t tile_queries);

    /// How many queries, with `slots` slots each, fit into slot memory at once.
    int64_t piece_queries(int64_t slots) const;

private:
    class ByBlock;
    const Problem& p_;
    View<const float, 3> q_, k_, v_, d_out_;
    View<float, 3> d_q_, d_k_, d_v_;
    int threads_;
    Tensor<float, 2> lse_;    // [Nq, Hq] in base 2; NaN where D is
    Tensor<float, 2> d_;      // [Nq, Hq] D
    Tensor<float, 1> slots_;  // grows to what a piece needs
};

}  // namespace msa::cpu
