// SPDX-License-Identifier: MIT
// DeepSeek's lightning indexer: any number of heads with learned weights, one choice for all
// groups, the KL of core/indexer/lightning_kl.h. Loss and gradient are computed on the host.
#include "core/indexer/lightning_kl.h"
#include "core/select/lightning.h"
#include "experiments/fit/architecture.h"

namespace msa::experiments::fit {
namespace {

using io::Field;

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

constexpr Field kMakesDsa[] = {Field::dsa_q, Field::dsa_k, Field::dsa_w};

}  // namespace

constinit const FitArchitecture kDsa{
    .does =
        "DeepSeek's lightning indexer: any number of heads with learned weights, one choice for "
        "all groups",
    .heads = " with learned weights, one choice for all groups",
    .makes = kMakesDsa,
    .any_heads = true,
    .set_sizes =
        [](const FittedSizes& of, io::LayerInfo& info) {
            info.learned.dsa_heads = of.form.groups;
            info.learned.dsa_dim = of.form.index_dim;
        },
    .make = [](const TrainingLayer& data, const LayerOperands& layer, int threads)
        -> std::unique_ptr<Indexer> { return std::make_unique<Lightning>(data, layer, threads); },
};

}  // namespace msa::experiments::fit
