// SPDX-License-Identifier: MIT
// The Index Branch: one head and one choice per group, the KL of Backend::index_kl.
#include "experiments/fit/architecture.h"

namespace msa::experiments::fit {
namespace {

using io::Field;

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

constexpr Field kMakesMsa[] = {Field::index_q, Field::index_k};

}  // namespace

constinit const FitArchitecture kMsa{
    .does = "the Index Branch, one head and one choice per group",
    .heads = ", one of each group",
    .makes = kMakesMsa,
    .set_sizes = [](const FittedSizes& of,
                    io::LayerInfo& info) { info.index_dim = of.form.index_dim; },
    .make = [](const TrainingLayer&, const LayerOperands& layer, int) -> std::unique_ptr<Indexer> {
        return std::make_unique<IndexBranch>(layer);
    },
};

}  // namespace msa::experiments::fit
