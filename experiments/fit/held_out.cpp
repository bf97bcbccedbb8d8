// SPDX-License-Identifier: MIT
#include "experiments/fit/held_out.h"

#include <algorithm>

#include "analysis/output_error.h"
#include "analysis/query_blocks.h"
#include "analysis/recall.h"
#include "experiments/measure/sums.h"

namespace msa::experiments::fit {

namespace {

/// Numbers [measures, Hkv] of each layer as [measures, layers, Hkv].
analysis::State joined(const std::vector<analysis::State>& layers, size_t measures) {
    analysis::State all;
    for (size_t n = 0; n < measures; ++n)
        for (const analysis::State& of : layers) {
            const auto groups = static_cast<std::ptrdiff_t>(of.sums.size() / measures);
            const auto at = static_cast<std::ptrdiff_t>(n) * groups;
            all.sums.insert(all.sums.end(), of.sums.begin() + at, of.sums.begin() + at + groups);
            all.counts.insert(all.counts.end(), of.counts.begin() + at,
                              of.counts.begin() + at + groups);
        }
    return all;
}

}  // namespace

HeldOut::OfLayer::OfLayer(const FitOptions& o, const Member& of, const std::vector<int64_t>& asked,
                          int threads)
    : member(of), tokens(asked), queries(of.operands, of.data, asked, *o.teacher, threads) {
    const LayerOperands& layer = of.operands;
    Backend& backend = layer.backend;
    const Problem& p = queries.problem;
    dense_out = attend(backend, p, {queries.q, layer.k, layer.v, layer.sinks}, {}).out;
    Mass there(backend, p, {queries.q, layer.k, layer.sinks}, o.oracle_by_logit);
    oracle_ids = pick(backend, p, o.rule, o.oracle_by_logit ? there.max_logit : there.mass);
    mass = fetch(backend, std::move(there.mass));
    entropy_teacher = of.indexer->teacher_entropy(queries, *o.teacher);
}

HeldOut::HeldOut(const FitOptions& options, const Members& members,
                 const std::vector<int64_t>& tokens, int threads)
    : o_(options), threads_(threads) {
    layers_.reserve(members.size());
    for (const auto& member : members) layers_.emplace_back(options, *member, tokens, threads);
    kinds_ = analysis::row_kinds(own().queries.problem, options.rule.top_k, options.all_rows);
}

int64_t HeldOut::rows_counted() const {
    return std::count(kinds_.begin(), kinds_.end(), analysis::RowKind::counted);
}

int64_t HeldOut::dead_heads() const {
    int64_t all = 0;
    for (const OfLayer& of : layers_) {
        analysis::OutputError error(of.queries.problem.query_heads);
        error.add(kinds_, of.dense_out, of.dense_out);
        all += error.dead_heads();
    }
    return all;
}

double HeldOut::mass_kept(const OfLayer& of, View<const int32_t, 3> ids) const {
    const Problem& p = of.queries.problem;
    analysis::Recall recall(p.kv_heads, {o_.oracle_without_local});
    recall.add(p, kinds_, ids, of.oracle_ids, of.mass);
    return analysis::average(recall.mass_kept());
}

double HeldOut::first_forced_mass(const IndexWeights& weights) const {
    Backend& backend = own().member.operands.backend;
    const IndexOperands index(backend, weights, own().member.data, own().queries, threads_);
    const Tensor<int32_t, 3> ids =
        fetch(backend, own().member.indexer->select(own().queries.problem, first_forced(), index));
    double all = 0;
    for (const OfLayer& of : layers_)
        all += mass_kept(of, ids) / static_cast<double>(layers_.size());
    return all;
}

double HeldOut::mass_kept(const OfLayer& of, const char* name) const {
    const LayerOperands& layer = of.member.operands;
    const TrainingLayer& data = of.member.data;
    const Problem& p = of.queries.problem;
    Backend& backend = layer.backend;
    const std::unique_ptr<Selector> selector = make_selector(name);
    const SelectorLayer whole{.problem = data.problem,
                              .backend = backend,
                              .k = {backend, layer.k.view(), data.k.view()},
                              .seed = o_.seed,
                              .number = data.info.layer,
                              .sinks = layer.sinks};
    const SelectorChunk chunk(whole, p, of.tokens,
                              {backend, of.queries.q.view(), host_view(of.queries.host_q)});
    selector->prepare(whole);
    return mass_kept(
        of, fetch(backend, selector->select(whole, chunk, selector->adjust(first_forced(), 0))));
}

Untrained HeldOut::untrained() const {
    Untrained all;
    for (const OfLayer& of : layers_) {
        const auto layers = static_cast<double>(layers_.size());
        all.window_mass += mass_kept(of, "window") / layers;
        all.mean_key_mass += mass_kept(of, "mean-key") / layers;
    }
    analysis::Mean recall;
    const Problem& p = own().queries.problem;
    for (size_t i = 0; i < kinds_.size(); ++i) {
        if (kinds_[i] != analysis::RowKind::counted) continue;
        const int64_t blocks = visible_blocks(visible_keys(p)[i].count, p.block_size);
        int64_t forced = 0;
        for (int64_t b = 0; b < blocks; ++b) forced += is_forced(o_.rule, b, blocks) ? 1 : 0;
        const auto free = static_cast<double>(blocks - forced),
                   slots = std::min(static_cast<double>(o_.rule.top_k - forced), free);
        // Of the oracle's free blocks, any is among as many by chance with probability slots /
        // free.
        const double found = free > 0 ? slots * slots / free : 0;
        recall.add((static_cast<double>(forced) + found) / (static_cast<double>(forced) + slots));
    }
    all.random_recall = recall.value();
    return all;
}

Evaluation HeldOut::evaluate(int64_t step, const IndexWeights& weights) const {
    Backend& backend = own().member.operands.backend;
    const IndexOperands index(backend, weights, own().member.data, own().queries, threads_);
    const Indexer& indexer = *own().member.indexer;
    const Tensor<int32_t, 3> there = indexer.select(own().queries.problem, o_.rule, index);
    const Tensor<int32_t, 3> ids = backend.download(there.view());
    Evaluation e;
    const auto layers = static_cast<double>(layers_.size());
    for (const OfLayer& of : layers_) {
        const Problem& p = of.queries.problem;
        const LayerOperands& layer = of.member.operands;
        const Indexer& teacher = *of.member.indexer;
        const Attention sparse =
            attend(backend, p, {of.queries.q, layer.k, layer.v, layer.sinks}, there);
        analysis::Recall recall(p.kv_heads, {o_.oracle_without_local});
        recall.add(p, kinds_, ids, of.oracle_ids, of.mass);
        analysis::OutputError error(p.query_heads);
        error.add(kinds_, sparse.out, of.dense_out);
        e.kl += mean_of(teacher.kl(of.queries, index, {}, *o_.teacher)) / layers;
        e.kl_selected += mean_of(teacher.kl(of.queries, index, there.view(), *o_.teacher)) / layers;
        e.block_recall += analysis::average(recall.block_recall()) / layers;
        e.score_recall += analysis::average(recall.score_recall()) / layers;
        e.mass_kept += analysis::average(recall.mass_kept()) / layers;
        e.oracle_mass += analysis::average(recall.oracle_mass()) / layers;
        e.output_error += error.mean() / layers;
        e.entropy_teacher += of.entropy_teacher / layers;
    }
    e.step = step;
    e.entropy_index = indexer.entropy(own().queries, index);
    return e;
}

HeldOut::OfQueries HeldOut::measure(const IndexWeights& weights) const {
    Backend& backend = own().member.operands.backend;
    const IndexOperands index(backend, weights, own().member.data, own().queries, threads_);
    Tensor<int32_t, 3> there = own().member.indexer->select(own().queries.problem, o_.rule, index);
    OfQueries all;
    for (const OfLayer& of : layers_) {
        const Indexer& teacher = *of.member.indexer;
        all.kl.push_back(teacher.kl(of.queries, index, {}, *o_.teacher));
        all.kl_selected.push_back(
            teacher.kl(of.queries, index, std::as_const(there).view(), *o_.teacher));
    }
    all.ids = fetch(backend, std::move(there));
    return all;
}

void HeldOut::write_blocks(io::UnitWriter& to, const IndexWeights& start,
                           const IndexWeights& best) const {
    const Problem& p = own().queries.problem;
    const OfQueries at_start = measure(start), at_best = measure(best);
    const std::string group = concat("/fit/", own().member.data.info.layer, "/blocks");
    using measure::BlockRows;
    const auto write = [&](const std::string& at, std::span<const analysis::RowKind> kinds,
                           size_t measures, const auto& measured) {
        const analysis::QueryBlocks blocks = analysis::query_blocks(p, kinds);
        measure::write_query_blocks(to, group + at, blocks);
        for (const auto& [name, of] : {std::pair{"/start", &at_start}, {"/best", &at_best}}) {
            analysis::BlockSums sums(blocks.count());
            for (const BlockRows& rows : measure::block_rows(p, blocks, {0, p.queries()})) {
                std::vector<analysis::State> states;
                for (size_t layer = 0; layer < layers_.size(); ++layer)
                    states.push_back(measured(rows, rows.of(kinds), *of, layer));
                sums.add(rows.block, joined(states, measures));
            }
            measure::write_block_sums(to, group + at + name, sums);
        }
    };
    write("/recall", kinds_, std::size(analysis::Recall::kColumns),
          [&](const BlockRows& rows, std::span<const analysis::RowKind> kinds, const OfQueries& of,
              size_t layer) {
              analysis::Recall recall(p.kv_heads, {o_.oracle_without_local});
              recall.add(rows.problem, kinds, rows.of(of.ids), rows.of(layers_[layer].oracle_ids),
                         rows.of(layers_[layer].mass));
              return recall.state();
          });
    const std::vector<analysis::RowKind> all(kinds_.size(), analysis::RowKind::counted);
    write("/kl", all, 2, [&](const BlockRows& rows, auto, const OfQueries& of, size_t layer) {
        std::vector<analysis::Mean> means(static_cast<size_t>(2 * p.kv_heads));
        for (int64_t i = rows.rows.begin; i < rows.rows.end; ++i)
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                means[static_cast<size_t>(r)].add(of.kl[layer](i, r));
                means[static_cast<size_t>(p.kv_heads + r)].add(of.kl_selected[layer](i, r));
            }
        return analysis::state_of(means);
    });
}

}  // namespace msa::experiments::fit
