// SPDX-License-Identifier: MIT
#include "experiments/pretrain/probe.h"

#include <algorithm>
#include <limits>
#include <map>

#include "analysis/entropy.h"
#include "analysis/recall.h"
#include "analysis/sink.h"
#include "experiments/driver/attend.h"

namespace msa::experiments::pretrain {
namespace {

using Figures = std::map<std::string, double>;

/// One layer after a forward pass.
class LayerProbe {
public:
    LayerProbe(train::Model& model, int64_t layer, const PackedBatch& layout)
        : backend_(model.ops().backend()),
          p_(model.config().problem(layout)),
          rule_(model.config().msa.rule),
          state_(model.attention(layer)),
          q_(on_host(model.ops(), state_.q)),
          k_(on_host(model.ops(), state_.k)),
          sinks_(model.sinks(layer)),
          host_sinks_(sinks_ ? backend_.download(sinks_) : Tensor<float, 1>()) {
        attention("dense", {});
        if (!state_.index_q) return;
        auto ids = backend_.make<int32_t, 3>({p_.queries(), p_.kv_heads, rule_.top_k});
        const IndexInput index{state_.index_q, train::flat(state_.index_k.in())};
        backend_.index_select(p_, rule_, index, ids);
        attention("sparse", ids);
        selection(fetch(backend_, std::move(ids)));
        figures_["entropy_index"] = index_entropy(backend_, p_, {state_.index_q, state_.index_k},
                                                  on_host(model.ops(), state_.index_q));
        auto kl = backend_.make<double, 2>({p_.queries(), p_.kv_heads});
        backend_.index_kl(
            p_, {.index = index, .q = state_.q, .k = state_.k, .ids = {}, .sinks = sinks_},
            {kl, {}, {}});
        const Tensor<double, 2> rows = fetch(backend_, std::move(kl));
        figures_["kl"] = analysis::average({rows.data(), rows.data() + rows.size()});
    }

    double figure(const char* name) const {
        const auto found = figures_.find(name);
        return found == figures_.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
    }

private:
    /// Entropy and sink mass, dense or over the blocks `ids`.
    void attention(const std::string& on, View<const int32_t, 3> ids) {
        const Attention mean_key =
            attend(backend_, p_, {state_.q, state_.k, state_.k, sinks_}, ids);
        Tensor<int32_t, 3> there;
        if (ids) there = backend_.download(ids);
        analysis::Entropy entropy(p_.query_heads);
        entropy.add(p_, q_, mean_key.out, mean_key.lse, host_sinks_);
        analysis::SinkMass sink(p_.query_heads, 1);
        sink.add(p_, q_, k_, mean_key.lse, there);
        figures_["entropy_" + on] = analysis::average(entropy.nats());
        figures_["sink_mass_" + on] = analysis::average(sink.first_token());
    }

    void selection(const Tensor<int32_t, 3>& ids) {
        const std::vector<analysis::RowKind> kinds = analysis::row_kinds(p_, rule_.top_k, false);
        const Mass there(backend_, p_, {state_.q, state_.k, sinks_}, false);
        const Tensor<float, 3> mass = backend_.download(there.mass.view());
        analysis::Recall recall(p_.kv_heads, {});
        recall.add(p_, kinds, ids, pick(backend_, p_, rule_, there.mass), mass);
        figures_["block_recall"] = analysis::average(recall.block_recall());
        figures_["score_recall"] = analysis::average(recall.score_recall());
        figures_["mass_kept"] = analysis::average(recall.mass_kept());
        figures_["oracle_mass"] = analysis::average(recall.oracle_mass());
        std::vector<analysis::Mean> means(static_cast<size_t>(p_.kv_heads));
        for (int64_t i = 0; i < p_.queries(); ++i)
            if (kinds[static_cast<size_t>(i)] == analysis::RowKind::counted)
                for (int64_t r = 0; r < p_.kv_heads; ++r)
                    means[static_cast<size_t>(r)].add(ids(i, r, 0) == 0 ? 1 : 0);
        figures_["first_block_rate"] = analysis::average(analysis::values(means));
    }

    Backend& backend_;
    Problem p_;
    SelectionRule rule_;
    const train::AttentionState& state_;
    Tensor<float, 3> q_, k_;
    View<const float, 1> sinks_;
    Tensor<float, 1> host_sinks_;
    Figures figures_;
};

}  // namespace

Tensor<float, 3> on_host(train::Ops& ops, In<3> values) {
    auto floats = ops.backend().make<float, 3>(values.shape());
    ops.add(train::as_list(values), 1, train::as_list(Out<3>(floats)), train::Sum::set);
    return fetch(ops.backend(), std::move(floats));
}

std::vector<std::vector<double>> probe(train::Model& model, const Sequences& text, bool sparse) {
    const Uploaded batch(model.ops().backend(), text);
    model.forward(batch.batch(), sparse);
    std::vector<std::vector<double>> figures(std::size(kProbed));
    for (int64_t layer = 0; layer < model.config().sizes.layers; ++layer) {
        const LayerProbe one(model, layer, text.layout);
        for (size_t m = 0; m < figures.size(); ++m) figures[m].push_back(one.figure(kProbed[m]));
    }
    return figures;
}

}  // namespace msa::experiments::pretrain
