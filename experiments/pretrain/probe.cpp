// SPDX-License-Identifier: MIT
#include "experiments/pretrain/probe.h"

#include <algorithm>
#include <limits>
#include <map>

#include "analysis/entropy.h"
#include "analysis/overlap.h"
#include "analysis/recall.h"
#include "analysis/sink.h"
#include "experiments/driver/attend.h"

namespace msa::experiments::pretrain {
namespace {

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

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
        if (sinks_)
            heads_["learned_sink_mass"] =
                analysis::learned_sink_mass(host_sinks_, backend_.download(state_.lse.view()));
        if (!state_.index_q) return;
        auto ids = backend_.make<int32_t, 3>({p_.queries(), p_.kv_heads, rule_.top_k});
        const IndexInput index{state_.index_q, train::flat(state_.index_k.in())};
        backend_.index_select(p_, rule_, index, ids);
        attention("sparse", ids);
        selection(fetch(backend_, std::move(ids)));
        metrics_["entropy_index"] = index_entropy(backend_, p_, {state_.index_q, state_.index_k},
                                                  on_host(model.ops(), state_.index_q));
        auto kl = backend_.make<double, 2>({p_.queries(), p_.kv_heads});
        backend_.index_kl(
            p_, {.index = index, .q = state_.q, .k = state_.k, .ids = {}, .sinks = sinks_},
            {kl, {}, {}});
        const Tensor<double, 2> rows = fetch(backend_, std::move(kl));
        metrics_["kl"] = analysis::average({rows.data(), rows.data() + rows.size()});
    }

    double metric(const char* name) const {
        if (const auto of_heads = heads_.find(name); of_heads != heads_.end())
            return analysis::average(of_heads->second);
        const auto found = metrics_.find(name);
        return found == metrics_.end() ? kNotMeasured : found->second;
    }
    std::vector<double> heads(const char* name) const {
        const auto found = heads_.find(name);
        return found == heads_.end()
                   ? std::vector<double>(static_cast<size_t>(p_.query_heads), kNotMeasured)
                   : found->second;
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
        sink.add(p_, sink.logits(p_, q_, k_), mean_key.lse, there);
        metrics_["entropy_" + on] = analysis::average(entropy.nats());
        heads_["sink_mass_" + on] = sink.first_token();
    }

    void selection(const Tensor<int32_t, 3>& ids) {
        const std::vector<analysis::RowKind> kinds = analysis::row_kinds(p_, rule_.top_k, false);
        const Mass there(backend_, p_, {state_.q, state_.k, sinks_}, false);
        const Tensor<float, 3> mass = backend_.download(there.mass.view());
        analysis::Recall recall(p_.kv_heads, {});
        recall.add(p_, kinds, ids, pick(backend_, p_, rule_, there.mass), mass);
        metrics_["block_recall"] = analysis::average(recall.block_recall());
        metrics_["score_recall"] = analysis::average(recall.score_recall());
        metrics_["mass_kept"] = analysis::average(recall.mass_kept());
        metrics_["oracle_mass"] = analysis::average(recall.oracle_mass());
        analysis::SelectionPattern pattern(p_.kv_heads);
        pattern.add(p_, kinds, ids);
        metrics_["first_block_rate"] = analysis::average(pattern.first_block_rate());
        metrics_["local_rate"] = analysis::average(pattern.local_rate());
        metrics_["far_overlap"] = analysis::average(pattern.far_overlap());
    }

    Backend& backend_;
    Problem p_;
    SelectionRule rule_;
    const train::AttentionState& state_;
    Tensor<float, 3> q_, k_;
    View<const float, 1> sinks_;
    Tensor<float, 1> host_sinks_;
    std::map<std::string, double> metrics_;             // means over groups, or over heads
    std::map<std::string, std::vector<double>> heads_;  // [Hq]
};

}  // namespace

Tensor<float, 3> on_host(train::Ops& ops, In<3> values) {
    auto floats = ops.backend().make<float, 3>(values.shape());
    ops.add(train::as_list(values), 1, train::as_list(Out<3>(floats)), train::Sum::set);
    return fetch(ops.backend(), std::move(floats));
}

Probe probe(train::Model& model, const Sequences& text, bool sparse) {
    const Uploaded batch(model.ops().backend(), text);
    model.forward(batch.batch(), sparse);
    Probe found{.layers = std::vector<std::vector<double>>(std::size(kProbed)),
                .heads = std::vector<std::vector<std::vector<double>>>(std::size(kProbedHeads))};
    for (int64_t layer = 0; layer < model.config().sizes.layers; ++layer) {
        const LayerProbe one(model, layer, text.layout);
        for (size_t m = 0; m < found.layers.size(); ++m)
            found.layers[m].push_back(one.metric(kProbed[m]));
        for (size_t m = 0; m < found.heads.size(); ++m)
            found.heads[m].push_back(one.heads(kProbedHeads[m]));
    }
    return found;
}

}  // namespace msa::experiments::pretrain
