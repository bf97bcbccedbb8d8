// SPDX-License-Identifier: MIT
#include "experiments/fit/indexer.h"

#include <cmath>
#include <utility>

#include "core/select/selector.h"
#include "experiments/fit/architecture.h"

namespace msa::experiments::fit {

Tensor<double, 2> index_kl(const LayerOperands& layer, const QueryOperands& queries,
                           const IndexInput& index, View<const int32_t, 3> ids, Teacher teacher,
                           View<float, 3> d_q, View<float, 2> d_k) {
    Backend& backend = layer.backend;
    const Problem& p = queries.problem;
    auto kl = backend.make<double, 2>({p.queries(), p.kv_heads});
    backend.index_kl(p, {index, queries.q, layer.k, ids, teacher, layer.sinks}, {kl, d_q, d_k});
    return fetch(backend, std::move(kl));
}

/// From the KL of the uniform distribution over the n
/// visible keys: KL(P || 1/n) = ln n - H(P), and zero index vectors are uniform.
double entropy_over_tokens(const LayerOperands& layer, const QueryOperands& queries,
                           Teacher teacher) {
    Backend& backend = layer.backend;
    const Problem& p = queries.problem;
    const auto zero_q = backend.make<float, 3>({p.queries(), p.kv_heads, p.index_dim});
    const auto zero_k = backend.make<float, 2>({p.keys(), p.index_dim});
    double sum = 0;
    for (const KeyRange& seen : visible_keys(p)) sum += std::log(static_cast<double>(seen.count));
    return sum / static_cast<double>(p.queries()) -
           mean_of(index_kl(layer, queries, {zero_q, zero_k}, {}, teacher, {}, {}));
}

Tensor<int32_t, 3> select_by(Backend& backend, const Problem& p, const SelectionRule& rule,
                             Tensor<float, 3> host_scores) {
    const Mirror<3> scores(backend, std::move(host_scores));
    auto ids = backend.make<int32_t, 3>({p.queries(), p.kv_heads, rule.top_k});
    backend.select_blocks(p, rule, scores.floats(), ids);
    backend.finish();  // with the scores
    return ids;
}

Tensor<double, 2> PooledIndexer::kl(const QueryOperands& queries, const IndexOperands& index,
                                    View<const int32_t, 3> ids, Teacher /*of the queries*/,
                                    IndexGradient* gradient) const {
    Tensor<double, 2> kl({queries.problem.queries(), queries.problem.kv_heads});
    Loss loss{.kl = kl.view()};
    if (gradient != nullptr) {
        *gradient = {
            Tensor<float, 3>(index.host_q.shape()), Tensor<float, 3>(index.host_k.shape()), {}};
        loss.d_q = gradient->q.view();
        loss.d_k = gradient->k.view();
    }
    compute(queries, index.host_q, index.host_k, HostIds(layer_.backend, ids).view(), loss);
    return kl;
}

double PooledIndexer::entropy(const QueryOperands& queries, const IndexOperands& index) const {
    Tensor<double, 2> nats({queries.problem.queries(), index.host_k.extent(1)});
    compute(queries, index.host_q, index.host_k, {}, {.entropy = nats.view()});
    return mean_of(nats);
}

double PooledIndexer::teacher_entropy(const QueryOperands& queries, Teacher) const {
    const Problem& p = queries.problem;
    Tensor<double, 2> nats({p.queries(), p.kv_heads});
    const Shape<3> keys = shape_of_keys(p);
    const Tensor<float, 3> any_q({p.queries(), keys[1], keys[2]}), any_k(keys);
    compute(queries, any_q, any_k, {}, {.target_entropy = nats.view()});
    return mean_of(nats);
}

Member::Member(TrainingLayer layer, Backend& backend, int threads)
    : data(std::move(layer)),
      operands(backend, data),
      indexer(fitted(data.architecture).make(data, operands, threads)) {}

PolicyCost cost_per_query(const Indexer& indexer, const TrainingLayer& data) {
    const std::unique_ptr<Selector> selector = make_selector(indexer.selector());
    const PolicyCost all = selector->cost({data.problem, 0, data.info.learned});
    const auto queries = static_cast<double>(data.problem.queries());
    return {all.flops / queries, all.bytes / queries};
}

double mean_of(const Tensor<double, 2>& kl) {
    double sum = 0;
    for (int64_t n = 0; n < kl.size(); ++n) sum += kl.data()[n];
    return sum / static_cast<double>(kl.size());
}

}  // namespace msa::experiments::fit
