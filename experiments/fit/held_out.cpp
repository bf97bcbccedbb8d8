// SPDX-License-Identifier: MIT
#include "experiments/fit/held_out.h"

#include <algorithm>
#include <cmath>

#include "analysis/entropy.h"
#include "analysis/output_error.h"
#include "analysis/query_blocks.h"
#include "analysis/recall.h"
#include "experiments/driver/block_intervals.h"

namespace msa::experiments::fit {
namespace {

/// The KL [Nq, Hkv] on the tokens of the blocks `ids`, on all visible ones where that is absent.
Tensor<double, 2> kl_of(const LayerOperands& layer, const Problem& p, const IndexInput& index,
                        In<3> q, View<const int32_t, 3> ids, Teacher teacher) {
    Backend& backend = layer.backend;
    auto kl = backend.make<double, 2>({p.queries(), p.kv_heads});
    backend.index_kl(p, {index, q, layer.k, ids, teacher, layer.sinks}, {kl, {}, {}});
    return fetch(backend, std::move(kl));
}

/// Its mean over all rows.
double kl_on(const LayerOperands& layer, const Problem& p, const IndexInput& index, In<3> q,
             View<const int32_t, 3> ids, Teacher teacher) {
    return mean_of(kl_of(layer, p, index, q, ids, teacher));
}

/// Entropy of the teacher, from the KL of the uniform distribution over the n visible keys:
/// KL(P || 1/n) = ln n - H(P), and zero index vectors are uniform.
double teacher_entropy(const LayerOperands& layer, const Problem& p, In<3> q, Teacher teacher) {
    Backend& backend = layer.backend;
    const auto zero_q = backend.make<float, 3>({p.queries(), p.kv_heads, p.index_dim});
    const auto zero_k = backend.make<float, 2>({p.keys(), p.index_dim});
    double sum = 0;
    for (const KeyRange& seen : visible_keys(p)) sum += std::log(static_cast<double>(seen.count));
    return sum / static_cast<double>(p.queries()) -
           kl_on(layer, p, {zero_q, zero_k}, q, {}, teacher);
}

}  // namespace

double mean_of(const Tensor<double, 2>& kl) {
    double sum = 0;
    for (int64_t n = 0; n < kl.size(); ++n) sum += kl.data()[n];
    return sum / static_cast<double>(kl.size());
}

HeldOut::HeldOut(const FitOptions& options, const TrainingLayer& data, const LayerOperands& layer,
                 const std::vector<int64_t>& tokens, int threads)
    : o_(options),
      data_(data),
      layer_(layer),
      threads_(threads),
      queries_(layer.backend, data, tokens),
      kinds_(analysis::row_kinds(queries_.problem, options.rule.top_k, options.all_rows)) {
    Backend& backend = layer.backend;
    const Problem& p = queries_.problem;
    dense_out_ = attend(backend, p, {queries_.q, layer.k, layer.v, layer.sinks}, {}).out;
    Mass there(backend, p, {queries_.q, layer.k, layer.sinks}, o_.oracle_by_logit);
    oracle_ids_ = pick(backend, p, o_.rule, o_.oracle_by_logit ? there.max_logit : there.mass);
    mass_ = fetch(backend, std::move(there.mass));
    entropy_teacher_ = teacher_entropy(layer, p, queries_.q, o_.teacher);
}

int64_t HeldOut::rows_counted() const {
    return std::count(kinds_.begin(), kinds_.end(), analysis::RowKind::counted);
}

Evaluation HeldOut::evaluate(int64_t step, const IndexWeights& weights) const {
    Backend& backend = layer_.backend;
    const Problem& p = queries_.problem;
    const IndexOperands index(backend, weights, data_, queries_, threads_);
    auto there = backend.make<int32_t, 3>(oracle_ids_.shape());
    backend.index_select(p, o_.rule, index, there);
    const Attention sparse =
        attend(backend, p, {queries_.q, layer_.k, layer_.v, layer_.sinks}, there);
    const double kl_selected = kl_on(layer_, p, index, queries_.q, there.view(), o_.teacher);
    const Tensor<int32_t, 3> ids = fetch(backend, std::move(there));

    analysis::Recall recall(p.kv_heads, {o_.oracle_without_local});
    recall.add(p, kinds_, ids, oracle_ids_, mass_);
    analysis::OutputError error(p.query_heads);
    error.add(kinds_, sparse.out, dense_out_);
    Evaluation e;
    e.step = step;
    e.kl = kl_on(layer_, p, index, queries_.q, {}, o_.teacher);
    e.kl_selected = kl_selected;
    e.block_recall = analysis::average(recall.block_recall());
    e.score_recall = analysis::average(recall.score_recall());
    e.mass_kept = analysis::average(recall.mass_kept());
    e.oracle_mass = analysis::average(recall.oracle_mass());
    e.output_error = error.mean();
    e.entropy_index = index_entropy(backend, p, {index.q.view(), index.k.view()}, index.host_q);
    e.entropy_teacher = entropy_teacher_;
    return e;
}

HeldOut::OfQueries HeldOut::measure(const IndexWeights& weights) const {
    Backend& backend = layer_.backend;
    const Problem& p = queries_.problem;
    const IndexOperands index(backend, weights, data_, queries_, threads_);
    auto there = backend.make<int32_t, 3>(oracle_ids_.shape());
    backend.index_select(p, o_.rule, index, there);
    OfQueries of{kl_of(layer_, p, index, queries_.q, {}, o_.teacher),
                 kl_of(layer_, p, index, queries_.q, there.view(), o_.teacher),
                 {}};
    of.ids = fetch(backend, std::move(there));
    return of;
}

void HeldOut::write_blocks(io::UnitWriter& to, const IndexWeights& start,
                           const IndexWeights& last) const {
    const Problem& p = queries_.problem;
    const OfQueries at_start = measure(start), at_end = measure(last);
    const std::string group = text("/fit/", data_.info.layer, "/blocks");
    const auto write = [&](const std::string& at, std::span<const analysis::RowKind> kinds,
                           const std::vector<std::string>& columns, const auto& measured) {
        const analysis::QueryBlocks blocks = analysis::query_blocks(p, kinds, kBlockTokens);
        write_query_blocks(to, group + at, blocks);
        for (const auto& [name, of] : {std::pair{"/start", &at_start}, {"/means", &at_end}}) {
            analysis::BlockMeans means(blocks.count(), std::ssize(columns) * p.kv_heads);
            means.add(blocks.of_query, measured(*of));
            write_block_means(to, group + at + name, means, blocks.count(), p.kv_heads, columns);
        }
    };
    const analysis::Recall recall(p.kv_heads, {o_.oracle_without_local});
    const auto& names = analysis::Recall::kColumns;
    write("/recall", kinds_, {std::begin(names), std::end(names)}, [&](const OfQueries& of) {
        return recall.measure(p, kinds_, of.ids, oracle_ids_, mass_);
    });
    const std::vector<analysis::RowKind> all(kinds_.size(), analysis::RowKind::counted);
    write("/kl", all, {"kl", "kl_selected"}, [&](const OfQueries& of) {
        return [&](int64_t i, analysis::RowValues values) {
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                values[static_cast<size_t>(r)] = of.kl(i, r);
                values[static_cast<size_t>(p.kv_heads + r)] = of.kl_selected(i, r);
            }
        };
    });
}

}  // namespace msa::experiments::fit
