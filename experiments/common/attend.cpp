// SPDX-License-Identifier: MIT
#include "experiments/common/attend.h"

namespace msa::experiments {

Attention attend(Backend& backend, const Problem& p, const AttentionInput& in,
                 View<const int32_t, 3> ids) {
    auto out = backend.make<float, 3>({p.queries(), p.query_heads, p.head_dim});
    auto lse = backend.make<float, 2>({p.queries(), p.query_heads});
    const AttentionOutput to{View<float, 3>(out), lse};
    if (ids)
        backend.sparse_attention(p, in, ids, to);
    else
        backend.dense_attention(p, in, to);
    backend.finish();
    if (backend.space() == Space::host) return {std::move(out), std::move(lse)};
    return {backend.download(out.view()), backend.download(lse.view())};
}

Attention attend_selected(Backend& backend, const Problem& p, const AttentionInput& in,
                          View<const int32_t, 3> ids) {
    if (backend.space() == Space::host) return attend(backend, p, in, ids);
    const Tensor<int32_t, 3> there = backend.upload(ids);
    return attend(backend, p, in, there);
}

Tensor<int32_t, 3> pick(Backend& backend, const Problem& p, const SelectionRule& rule,
                        View<const float, 3> scores) {
    auto ids = backend.make<int32_t, 3>({p.queries(), p.kv_heads, rule.top_k});
    if (backend.space() == Space::host) {
        backend.select_blocks(p, rule, scores, ids);
        return ids;
    }
    const Tensor<float, 3> there = backend.upload(scores);
    backend.select_blocks(p, rule, there, ids);
    return backend.download(ids.view());
}

}  // namespace msa::experiments
