// SPDX-License-Identifier: MIT
#include "experiments/fit/held_out.h"

#include <algorithm>

#include "analysis/output_error.h"
#include "analysis/query_blocks.h"
#include "analysis/recall.h"
#include "experiments/measure/sums.h"

namespace msa::experiments::fit {
HeldOut::HeldOut(const FitOptions& options, const TrainingLayer& data, const LayerOperands& layer,
                 const Indexer& indexer, const std::vector<int64_t>& tokens, int threads)
    : o_(options),
      data_(data),
      layer_(layer),
      indexer_(indexer),
      threads_(threads),
      queries_(layer, data, tokens, *options.teacher, threads),
      kinds_(analysis::row_kinds(queries_.problem, options.rule.top_k, options.all_rows)) {
    Backend& backend = layer.backend;
    const Problem& p = queries_.problem;
    dense_out_ = attend(backend, p, {queries_.q, layer.k, layer.v, layer.sinks}, {}).out;
    Mass there(backend, p, {queries_.q, layer.k, layer.sinks}, o_.oracle_by_logit);
    oracle_ids_ = pick(backend, p, o_.rule, o_.oracle_by_logit ? there.max_logit : there.mass);
    mass_ = fetch(backend, std::move(there.mass));
    entropy_teacher_ = indexer.teacher_entropy(queries_, *o_.teacher);
}

int64_t HeldOut::rows_counted() const {
    return std::count(kinds_.begin(), kinds_.end(), analysis::RowKind::counted);
}

int64_t HeldOut::dead_heads() const {
    analysis::OutputError error(queries_.problem.query_heads);
    error.add(kinds_, dense_out_, dense_out_);
    return error.dead_heads();
}

Evaluation HeldOut::evaluate(int64_t step, const IndexWeights& weights) const {
    Backend& backend = layer_.backend;
    const Problem& p = queries_.problem;
    const IndexOperands index(backend, weights, data_, queries_, threads_);
    Tensor<int32_t, 3> there = indexer_.select(p, o_.rule, index);
    const Attention sparse =
        attend(backend, p, {queries_.q, layer_.k, layer_.v, layer_.sinks}, there);
    const double kl_selected =
        mean_of(indexer_.kl(queries_, index, std::as_const(there).view(), *o_.teacher));
    const Tensor<int32_t, 3> ids = fetch(backend, std::move(there));

    analysis::Recall recall(p.kv_heads, {o_.oracle_without_local});
    recall.add(p, kinds_, ids, oracle_ids_, mass_);
    analysis::OutputError error(p.query_heads);
    error.add(kinds_, sparse.out, dense_out_);
    Evaluation e;
    e.step = step;
    e.kl = mean_of(indexer_.kl(queries_, index, {}, *o_.teacher));
    e.kl_selected = kl_selected;
    e.block_recall = analysis::average(recall.block_recall());
    e.score_recall = analysis::average(recall.score_recall());
    e.mass_kept = analysis::average(recall.mass_kept());
    e.oracle_mass = analysis::average(recall.oracle_mass());
    e.output_error = error.mean();
    e.entropy_index = indexer_.entropy(queries_, index);
    e.entropy_teacher = entropy_teacher_;
    return e;
}

HeldOut::OfQueries HeldOut::measure(const IndexWeights& weights) const {
    Backend& backend = layer_.backend;
    const Problem& p = queries_.problem;
    const IndexOperands index(backend, weights, data_, queries_, threads_);
    Tensor<int32_t, 3> there = indexer_.select(p, o_.rule, index);
    OfQueries of{indexer_.kl(queries_, index, {}, *o_.teacher),
                 indexer_.kl(queries_, index, std::as_const(there).view(), *o_.teacher),
                 {}};
    of.ids = fetch(backend, std::move(there));
    return of;
}

void HeldOut::write_blocks(io::UnitWriter& to, const IndexWeights& start,
                           const IndexWeights& best) const {
    const Problem& p = queries_.problem;
    const OfQueries at_start = measure(start), at_best = measure(best);
    const std::string group = concat("/fit/", data_.info.layer, "/blocks");
    using measure::BlockRows;
    const auto write = [&](const std::string& at, std::span<const analysis::RowKind> kinds,
                           const auto& measured) {
        const analysis::QueryBlocks blocks = analysis::query_blocks(p, kinds);
        measure::write_query_blocks(to, group + at, blocks);
        for (const auto& [name, of] : {std::pair{"/start", &at_start}, {"/best", &at_best}}) {
            analysis::BlockSums sums(blocks.count());
            for (const BlockRows& rows : measure::block_rows(p, blocks, {0, p.queries()}))
                sums.add(rows.block, measured(rows, rows.of(kinds), *of));
            measure::write_block_sums(to, group + at + name, sums);
        }
    };
    write(
        "/recall", kinds_,
        [&](const BlockRows& rows, std::span<const analysis::RowKind> kinds, const OfQueries& of) {
            analysis::Recall recall(p.kv_heads, {o_.oracle_without_local});
            recall.add(rows.problem, kinds, rows.of(of.ids), rows.of(oracle_ids_), rows.of(mass_));
            return recall.state();
        });
    const std::vector<analysis::RowKind> all(kinds_.size(), analysis::RowKind::counted);
    write("/kl", all, [&](const BlockRows& rows, auto, const OfQueries& of) {
        std::vector<analysis::Mean> means(static_cast<size_t>(2 * p.kv_heads));
        for (int64_t i = rows.rows.begin; i < rows.rows.end; ++i)
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                means[static_cast<size_t>(r)].add(of.kl(i, r));
                means[static_cast<size_t>(p.kv_heads + r)].add(of.kl_selected(i, r));
            }
        return analysis::state_of(means);
    });
}

}  // namespace msa::experiments::fit
