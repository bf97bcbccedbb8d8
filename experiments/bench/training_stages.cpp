// SPDX-License-Identifier: MIT
#include <algorithm>

#include "analysis/cost_model.h"
#include "analysis/selection_cost.h"
#include "experiments/bench/case_run.h"
#include "experiments/bench/check_rows.h"
#include "experiments/bench/layers.h"
#include "experiments/driver/sample.h"
#include "experiments/report/text.h"

namespace msa::experiments::bench {
namespace {

constexpr int64_t kFitQueries = 512;  // of a step of index_kl

}  // namespace

void CaseRun::index_kl(Measurement& m, const IndexOperands& index, bool selected, bool given) {
    const std::vector<int64_t> rows =
        stratified_sample(p_.queries(), std::min(kFitQueries, p_.queries()), o_.seed);
    const Problem p = p_.with_query_rows(rows);
    const Stored<3> q = gather(backend_, first().q, rows);
    const Stored<3> index_q = gather(backend_, index.q, rows);
    const IndexInput operands{index_q, index.k};
    GivenLse lse;
    if (selected || given)
        lse = forward_lse(backend_, p, first(), q, operands, selected ? case_.top_k : 0);
    IndexKlInput in{operands, q, first().k, lse.ids};
    auto kl = backend_.make<double, 2>({p.queries(), p.kv_heads});
    auto d_index_q = backend_.make<float, 3>(index_q.shape());
    auto d_index_k = backend_.make<float, 2>(index.k.shape());
    IndexKlOutput to{kl, d_index_q, d_index_k};
    if (given) {
        in.main_lse = lse.main;
        in.index_lse = lse.index;
        to.kl = {};
    }
    m.checked_rows = check_.index_kl(first(), index, selected, given);
    backend_.index_kl(p, in, to);
    m.answered_by = backend_.answered_by();
    m.rows = p.queries();
    const double pairs =
        selected ? analysis::selected_pairs(p, backend_.download(std::as_const(lse.ids).view()))
                 : static_cast<double>(p.kv_heads) * analysis::causal_pairs(p);
    m.flops = analysis::index_kl_flops(p, pairs);
    m.bytes = analysis::index_kl_bytes(p, m.element);
    m.timing = meter_.time([&](int64_t) { backend_.index_kl(p, in, to); }, 1, o_.samples);
}

void CaseRun::all_index_kl(const std::string& selection, size_t element) {
    const IndexOperands& operands = first().index[element];
    for (const std::string& support : o_.supports)
        for (bool given : {false, true}) {
            Measurement kl{.stage = "index_kl", .selection = selection};
            kl.support = given ? support + ", lse" : support;
            kl.element = o_.sizes.element;
            guarded(kl,
                    [&](Measurement& m) { index_kl(m, operands, support == "selected", given); });
        }
}

void CaseRun::all_index_kl_grad(const std::string& selection, size_t element,
                                View<const int32_t, 3> ids) {
    for (const std::string& support : o_.supports) {
        Measurement kl{.stage = "index_kl_grad", .selection = selection};
        kl.support = support;
        kl.element = o_.sizes.element;
        guarded(kl, [&](Measurement& m) {
            index_kl_grad(m, element, support == "selected" ? ids : View<const int32_t, 3>());
        });
    }
}

void CaseRun::train_index(Layer& layer, size_t element, View<const int32_t, 3> ids) {
    const IndexOperands& index = layer.index[element];
    IndexKlInput in{{index.q, index.k}, layer.q, layer.k, ids};
    in.main_lse = layer.lse;
    in.index_lse = layer.index_lse;
    backend_.index_kl(p_, in, {{}, layer.d_index_q, layer.d_index_k});
}

void CaseRun::index_kl_grad(Measurement& m, size_t element, View<const int32_t, 3> ids) {
    const bool selected = ids.data() != nullptr;
    const auto support = [&](Layer& layer) {
        return selected ? View<const int32_t, 3>(layer.ids) : View<const int32_t, 3>();
    };
    layers_->poison_results();
    for (Layer& layer : layers_->all()) {
        if (selected) {
            select(layer, element, layer.index_lse);
            attend(layer, LoopOrder::automatic);
        } else {
            full_index_lse(backend_, p_, layer.index[element], layer);
            backend_.dense_attention(p_, layer.attention(), layer.result());
        }
    }
    train_index(first(), element, support(first()));
    m.answered_by = backend_.answered_by();
    m.checked_rows = check_.index_kl_grad(first(), first().index[element], ids);
    count_index_kl(m, ids);
    m.timing = layers_->time([&](Layer& layer) { train_index(layer, element, support(layer)); });
}

void CaseRun::count_index_kl(Measurement& m, View<const int32_t, 3> ids) const {
    const double pairs = ids.data() != nullptr
                             ? analysis::selected_pairs(p_, ids)
                             : static_cast<double>(p_.kv_heads) * analysis::causal_pairs(p_);
    m.flops += analysis::index_kl_flops(p_, pairs);
    m.bytes += analysis::index_kl_bytes(p_, o_.sizes.element);
}

void CaseRun::dense_attention_grad(Measurement& m) {
    const auto call = [&](Layer& layer) {
        backend_.dense_attention_grad(p_, layer.attention(), layer.saved(), layer.gradient());
    };
    layers_->poison_results();
    for (Layer& layer : layers_->all())
        backend_.dense_attention(p_, layer.attention(), layer.result());
    call(first());
    m.answered_by = backend_.answered_by();
    m.checked_rows = check_.dense_attention_grad(first());
    m.flops = analysis::dense_attention_grad_flops(p_);
    m.element = o_.sizes.element;
    m.bytes = analysis::dense_attention_grad_bytes(p_, o_.sizes.element);
    m.timing = layers_->time(call);
}

void CaseRun::attend_back(Layer& layer, LoopOrder order) {
    backend_.sparse_attention_grad(p_, layer.attention(), layer.ids, layer.saved(),
                                   layer.gradient(), order);
}

void CaseRun::sparse_attention_grad(Measurement& m, View<const int32_t, 3> ids, LoopOrder order) {
    const auto call = [&](Layer& layer) { attend_back(layer, order); };
    layers_->poison_results();
    for (Layer& layer : layers_->all()) attend(layer, LoopOrder::automatic);
    call(first());
    m.answered_by = backend_.answered_by();
    m.checked_rows = check_.sparse_attention_grad(first(), ids);
    m.timing = layers_->time(call);
}

void CaseRun::layer_grad(Measurement& m, size_t element, View<const int32_t, 3> ids) {
    const std::vector<std::function<void(Layer&)>> steps{
        [&](Layer& layer) { select(layer, element, layer.index_lse); },
        [&](Layer& layer) { attend(layer, LoopOrder::automatic); },
        [&](Layer& layer) { attend_back(layer, LoopOrder::automatic); },
        [&](Layer& layer) { train_index(layer, element, layer.ids); }};
    layers_->poison_results();
    layers_->poison_ids();
    for (const auto& step : steps) {
        step(first());
        add_item(m.answered_by, ", ", backend_.answered_by());
    }
    check_.same_ids(ids, first());
    m.checked_rows = check_.sparse_attention(first()) + check_.sparse_attention_grad(first(), ids) +
                     check_.index_kl_grad(first(), first().index[element], ids);
    count_index_kl(m, ids);
    m.timing = layers_->time([&](Layer& layer) {
        for (const auto& step : steps) step(layer);
    });
}

}  // namespace msa::experiments::bench
