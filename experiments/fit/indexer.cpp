// SPDX-License-Identifier: MIT
#include "experiments/fit/indexer.h"

#include <algorithm>
#include <cmath>

#include "core/indexer/gate_kl.h"
#include "core/indexer/lightning_kl.h"
#include "core/select/gate_scores.h"
#include "core/select/lightning.h"
#include "core/select/selector.h"

namespace msa::experiments::fit {
namespace {

/// The KL of index_kl with these index operands.
Tensor<double, 2> index_kl(const LayerOperands& layer, const QueryOperands& queries,
                           const IndexInput& index, View<const int32_t, 3> ids, Teacher teacher,
                           View<float, 3> d_q, View<float, 2> d_k) {
    Backend& backend = layer.backend;
    const Problem& p = queries.problem;
    auto kl = backend.make<double, 2>({p.queries(), p.kv_heads});
    backend.index_kl(p, {index, queries.q, layer.k, ids, teacher, layer.sinks}, {kl, d_q, d_k});
    return fetch(backend, std::move(kl));
}

/// The entropy of the teacher over tokens, from the KL of the uniform distribution over the n
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

/// Ids of the backend's space on the host, absent where they are.
class HostIds {
public:
    HostIds(Backend& backend, View<const int32_t, 3> ids) : view_(ids) {
        if (!ids || backend.space() == Space::host) return;
        copy_ = backend.download(ids);
        view_ = std::as_const(copy_).view();
    }
    View<const int32_t, 3> view() const { return view_; }

private:
    Tensor<int32_t, 3> copy_;
    View<const int32_t, 3> view_;
};

/// select_blocks by scores on the host.
Tensor<int32_t, 3> select_by(Backend& backend, const Problem& p, const SelectionRule& rule,
                             Tensor<float, 3> host_scores) {
    const Mirror<3> scores(backend, std::move(host_scores));
    auto ids = backend.make<int32_t, 3>({p.queries(), p.kv_heads, rule.top_k});
    backend.select_blocks(p, rule, scores.floats(), ids);
    backend.finish();  // with the scores
    return ids;
}

class IndexBranch final : public Indexer {
public:
    explicit IndexBranch(const LayerOperands& layer) : layer_(layer) {}

    const char* selector() const override { return "index"; }
    Tensor<int32_t, 3> select(const Problem& p, const SelectionRule& rule,
                              const IndexOperands& index) const override {
        auto ids = layer_.backend.make<int32_t, 3>({p.queries(), p.kv_heads, rule.top_k});
        layer_.backend.index_select(p, rule, index, ids);
        return ids;
    }
    Tensor<double, 2> kl(const QueryOperands& queries, const IndexOperands& index,
                         View<const int32_t, 3> ids, Teacher teacher,
                         IndexGradient* gradient) const override {
        Backend& backend = layer_.backend;
        if (gradient == nullptr) return index_kl(layer_, queries, index, ids, teacher, {}, {});
        auto d_q = backend.make<float, 3>(index.q.view().shape());
        auto d_k = backend.make<float, 3>(index.k.view().shape());
        const View<float, 2> d_keys(d_k.data(), {d_k.extent(0), d_k.extent(2)}, backend.space());
        Tensor<double, 2> kl = index_kl(layer_, queries, index, ids, teacher, d_q, d_keys);
        gradient->q = fetch(backend, std::move(d_q));
        gradient->k = fetch(backend, std::move(d_k));
        return kl;
    }
    double entropy(const QueryOperands& queries, const IndexOperands& index) const override {
        return index_entropy(layer_.backend, queries.problem, {index.q.view(), index.k.view()},
                             index.host_q);
    }
    double teacher_entropy(const QueryOperands& queries, Teacher teacher) const override {
        return entropy_over_tokens(layer_, queries, teacher);
    }

private:
    const LayerOperands& layer_;
};

View<const float, 2> one_head(const Tensor<float, 3>& rows) { return rows_of(host_view(rows)); }
View<float, 2> one_head(Tensor<float, 3>& rows) {
    return {rows.data(), {rows.extent(0), rows.extent(2)}};
}

class Lightning final : public Indexer {
public:
    Lightning(const TrainingLayer& data, const LayerOperands& layer, int threads)
        : data_(data), layer_(layer), sinks_(io::layer_sinks(data.info)), threads_(threads) {}

    const char* selector() const override { return "dsa"; }
    Tensor<int32_t, 3> select(const Problem& p, const SelectionRule& rule,
                              const IndexOperands& index) const override {
        Backend& backend = layer_.backend;
        Tensor<float, 3> weights(index.host_weights.shape(), Fill::nothing);
        std::copy_n(index.host_weights.data(), weights.size(), weights.data());
        const LightningOperands operands{
            {backend, index.q.view(), host_view(index.host_q)},
            {backend, rows_of(index.k.view().as<const float>()), one_head(index.host_k)},
            std::move(weights)};
        return select_by(backend, p, rule, lightning_block_scores(backend, p, operands));
    }
    Tensor<double, 2> kl(const QueryOperands& queries, const IndexOperands& index,
                         View<const int32_t, 3> ids, Teacher teacher,
                         IndexGradient* gradient) const override {
        const Problem& p = queries.problem;
        Tensor<double, 2> kl({p.queries(), p.kv_heads});
        LightningKlOutput to{.kl = kl.view()};
        if (gradient != nullptr) {
            *gradient = {Tensor<float, 3>(index.host_q.shape()),
                         Tensor<float, 3>(index.host_k.shape()),
                         Tensor<float, 3>(index.host_weights.shape())};
            to.d_index_q = gradient->q.view();
            to.d_index_k = one_head(gradient->k);
            to.d_weights = one_head(gradient->weights);
        }
        compute(queries, index, HostIds(layer_.backend, ids).view(), teacher, to);
        return kl;
    }
    double entropy(const QueryOperands& queries, const IndexOperands& index) const override {
        Tensor<double, 1> nats({queries.problem.queries()});
        compute(queries, index, {}, Teacher::mean, {.entropy = nats.view()});
        double sum = 0;
        for (int64_t i = 0; i < nats.size(); ++i) sum += nats(i);
        return sum / static_cast<double>(nats.size());
    }
    double teacher_entropy(const QueryOperands& queries, Teacher teacher) const override {
        return entropy_over_tokens(layer_, queries, teacher);
    }

private:
    void compute(const QueryOperands& queries, const IndexOperands& index,
                 View<const int32_t, 3> ids, Teacher teacher, const LightningKlOutput& to) const {
        lightning_kl(
            queries.problem,
            {{host_view(index.host_q), one_head(index.host_k), one_head(index.host_weights)},
             host_view(queries.host_q),
             data_.k.view(),
             ids,
             teacher,
             std::as_const(sinks_).view()},
            to, threads_);
    }

    const TrainingLayer& data_;
    const LayerOperands& layer_;
    Tensor<float, 1> sinks_;
    int threads_;
};

class Gate final : public Indexer {
public:
    Gate(const LayerOperands& layer, int threads) : layer_(layer), threads_(threads) {}

    const char* selector() const override { return "seerattention"; }
    Tensor<int32_t, 3> select(const Problem& p, const SelectionRule& rule,
                              const IndexOperands& index) const override {
        Backend& backend = layer_.backend;
        const GateScores scores({.problem = p, .backend = backend, .k = {}}, index.host_k);
        return select_by(backend, p, rule, scores.score(backend, p, index.host_q));
    }
    Tensor<double, 2> kl(const QueryOperands& queries, const IndexOperands& index,
                         View<const int32_t, 3> ids, Teacher /*of the queries*/,
                         IndexGradient* gradient) const override {
        const Problem& p = queries.problem;
        Tensor<double, 2> kl({p.queries(), p.kv_heads});
        GateKlOutput to{.kl = kl.view()};
        if (gradient != nullptr) {
            *gradient = {
                Tensor<float, 3>(index.host_q.shape()), Tensor<float, 3>(index.host_k.shape()), {}};
            to.d_gate_q = gradient->q.view();
            to.d_gate_k = gradient->k.view();
        }
        const HostIds here(layer_.backend, ids);
        gate_kl(p, input(queries, index.host_q, index.host_k, here.view()), to, threads_);
        return kl;
    }
    double entropy(const QueryOperands& queries, const IndexOperands& index) const override {
        const Problem& p = queries.problem;
        Tensor<double, 2> nats({p.queries(), p.kv_heads});
        gate_kl(p, input(queries, index.host_q, index.host_k, {}), {.entropy = nats.view()},
                threads_);
        return mean_of(nats);
    }
    double teacher_entropy(const QueryOperands& queries, Teacher) const override {
        const Problem& p = queries.problem;
        Tensor<double, 2> nats({p.queries(), p.kv_heads});
        const Tensor<float, 3> any_q({p.queries(), p.kv_heads, kMinHeadDim}),
            any_k({block_starts(p).back(), p.kv_heads, kMinHeadDim});
        gate_kl(p, input(queries, any_q, any_k, {}), {.target_entropy = nats.view()}, threads_);
        return mean_of(nats);
    }

private:
    static GateKlInput input(const QueryOperands& queries, const Tensor<float, 3>& gate_q,
                             const Tensor<float, 3>& gate_k, View<const int32_t, 3> ids) {
        return {gate_q.view(), gate_k.view(), queries.target.view(), ids};
    }

    const LayerOperands& layer_;
    int threads_;
};

}  // namespace

std::unique_ptr<Indexer> make_indexer(Architecture architecture, const TrainingLayer& data,
                                      const LayerOperands& layer, int threads) {
    switch (architecture) {
        case Architecture::dsa: return std::make_unique<Lightning>(data, layer, threads);
        case Architecture::seerattention: return std::make_unique<Gate>(layer, threads);
        case Architecture::msa: break;
    }
    return std::make_unique<IndexBranch>(layer);
}

PolicyCost cost_per_query(const Indexer& indexer, const TrainingLayer& data) {
    const PolicyCost all = make_selector(indexer.selector())->cost({data.problem, 0, data.learned});
    const auto queries = static_cast<double>(data.problem.queries());
    return {all.flops / queries, all.bytes / queries};
}

double mean_of(const Tensor<double, 2>& kl) {
    double sum = 0;
    for (int64_t n = 0; n < kl.size(); ++n) sum += kl.data()[n];
    return sum / static_cast<double>(kl.size());
}

}  // namespace msa::experiments::fit
