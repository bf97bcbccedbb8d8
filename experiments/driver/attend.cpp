// SPDX-License-Identifier: MIT
#include "experiments/driver/attend.h"

#include <memory>

#include "analysis/entropy.h"
namespace msa::experiments {

Attention attend(Backend& backend, const Problem& p, const AttentionInput& in,
                 View<const int32_t, 3> ids) {
    const Shape<3> shape{p.queries(), p.query_heads, p.head_dim};
    auto lse = backend.make<float, 2>({p.queries(), p.query_heads});
    const auto run = [&](Out<3> out) {
        if (ids)
            backend.sparse_attention(p, in, ids, {out, lse});
        else
            backend.dense_attention(p, in, {out, lse});
    };
    if (const Element element = in.q.element(); is_stored_in_operands(element)) {
        const int64_t bytes = element_count(shape) * element_bytes(element);
        const std::shared_ptr<void> there = backend.allocate(bytes),
                                    stored = allocate_host(bytes, Fill::nothing);
        run({there.get(), shape, element, backend.space()});
        backend.finish();
        backend.copy(stored.get(), Space::host, there.get(), backend.space(), bytes);
        Tensor<float, 3> values(shape, Fill::nothing);
        decode(stored.get(), element, {values.data(), static_cast<size_t>(values.size())});
        return {std::move(values), fetch(backend, std::move(lse))};
    }
    auto out = backend.make<float, 3>(shape);
    run(out);
    return {fetch(backend, std::move(out)), fetch(backend, std::move(lse))};
}

Attention attend_selected(Backend& backend, const Problem& p, const AttentionInput& in,
                          View<const int32_t, 3> ids) {
    if (backend.space() == Space::host) return attend(backend, p, in, ids);
    const Tensor<int32_t, 3> there = backend.upload(ids);
    return attend(backend, p, in, there);
}

double index_entropy(Backend& backend, const Problem& p, const IndexHeads& in,
                     View<const float, 3> host_q) {
    Problem index = p;
    index.query_heads = p.kv_heads;
    index.kv_heads = 1;
    index.head_dim = p.index_dim;
    index.softmax_scale_override = p.index_scale();
    index.window.reset();  // they are the Main Branch's
    index.softcap.reset();
    const Attention mean_key = attend(backend, index, {in.q, in.k, in.k}, {});
    analysis::Entropy entropy(p.kv_heads);
    entropy.add(index, host_q, mean_key.out, mean_key.lse);
    return analysis::average(entropy.nats());
}

Mass::Mass(Backend& backend, const Problem& p, const BlockMassInput& in, bool logits)
    : mass(backend.make<float, 3>({p.queries(), p.kv_heads, p.blocks()})) {
    if (logits) max_logit = backend.make<float, 3>(mass.shape());
    backend.block_mass(p, in, {mass, max_logit.view()});
}

Tensor<int32_t, 3> pick(Backend& backend, const Problem& p, const SelectionRule& rule,
                        In<3> scores) {
    auto ids = backend.make<int32_t, 3>({p.queries(), p.kv_heads, rule.top_k});
    backend.select_blocks(p, rule, scores.as<const float>(), ids);
    return fetch(backend, std::move(ids));
}

}  // namespace msa::experiments
