// SPDX-License-Identifier: MIT
// The gradient of eq:msa-sparse-attn. kv_outer makes all of it by block, a piece of the queries at
// a time. The other orders make d_k and d_v by block, and d_q by query: union in tiles of
// neighbouring queries, q_outer one query at a time.
#include <algorithm>

#include "core/cpu/attention_grad.h"
#include "core/cpu/cpu_backend.h"
#include "core/cpu/support_loop.h"

namespace msa::cpu {

void sparse_attention_grad(const Problem& p, const AttentionInput& in, View<const int32_t, 3> ids,
                           const AttentionSaved& saved, const AttentionGradient& to,
                           LoopOrder order, int threads) {
    using Sums = AttentionGrad::Sums;
    AttentionGrad grad(p, in, saved, to, threads);
    if (order == LoopOrder::q_outer || order == LoopOrder::tile_union) {
        grad.add_by_block({0, p.queries()}, ids, p.block_size, Sums::keys);
        grad.add_by_query(ids, order == LoopOrder::q_outer
                                   ? 1
                                   : std::max<int64_t>(1, kUnionTileRows / p.group_size()));
        return;
    }
    const int64_t piece = grad.piece_queries(ids.extent(2));
    for (int64_t begin = 0; begin < p.queries(); begin += piece) {
        const QueryRange range{begin, std::min(begin + piece, p.queries())};
        grad.add_by_block(range, ids.slice(begin, range.end - begin), p.block_size,
                          Sums::keys_and_queries);
    }
}

}  // namespace msa::cpu
