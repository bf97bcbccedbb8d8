// SPDX-License-Identifier: MIT
#include "experiments/bench/given_lse.h"

namespace msa::experiments::bench {

GivenLse forward_lse(Backend& backend, const Problem& p, const Layer& layer, const Stored<3>& q,
                     const IndexInput& index, int64_t top_k) {
    GivenLse given{{},
                   backend.make<float, 2>({p.queries(), p.query_heads}),
                   backend.make<float, 2>({p.queries(), p.kv_heads})};
    auto out = backend.make<float, 3>(q.shape());
    const int64_t k = top_k > 0 ? top_k : p.blocks();  // all blocks are the full support
    auto ids = backend.make<int32_t, 3>({p.queries(), p.kv_heads, k});
    backend.index_select(p, {.top_k = k}, index, ids, given.index);
    const AttentionInput in{q, layer.k, layer.v};
    if (top_k == 0) {
        backend.dense_attention(p, in, {out, given.main});
        return given;
    }
    backend.sparse_attention(p, in, ids, {out, given.main});
    given.ids = std::move(ids);
    return given;
}

void full_index_lse(Backend& backend, const Problem& p, const IndexOperands& index, Layer& layer) {
    Problem branch = p;
    branch.query_heads = p.kv_heads;
    branch.kv_heads = 1;
    branch.head_dim = p.index_dim;
    branch.softmax_scale_override = p.index_scale();
    const In<3> keys{
        index.k.data(), {p.keys(), 1, p.index_dim}, index.k.element(), backend.space()};
    Stored<3> out(backend, index.q.shape(), index.q.element());
    backend.dense_attention(branch, {index.q, keys, keys}, {out, layer.index_lse});
}

}  // namespace msa::experiments::bench
