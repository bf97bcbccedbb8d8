// SPDX-License-Identifier: MIT
#include "experiments/analyze/sums.h"

#include <algorithm>

#include "analysis/entropy.h"
#include "analysis/metrics.h"
#include "analysis/output_error.h"
#include "analysis/popularity.h"
#include "analysis/sink.h"
#include "experiments/driver/metrics.h"
#include "experiments/measure/ties.h"

namespace msa::experiments::analyze {
namespace {

using analysis::RowKind;
using measure::Tally;

void write_popularity(const Tally& tally, const LayerAbout& about,
                      const LayerAbout::OfSelector& selector, const std::string& dataset,
                      io::UnitWriter& to) {
    const auto of = tally.total(selector.label + "/popularity",
                                analysis::Popularity(about.kv_heads, about.first_block));
    const View<const int64_t, 2> counts = of.queries_per_block();
    const analysis::Metric& metric = analysis::metric("queries_per_block");
    to.write<int64_t, 2>(dataset, counts, {metric.axis, metric.unit, metric.definition});
    double gini = 0, fill = 0;
    int64_t chunks = 0;
    for (int64_t r = 0; r < about.kv_heads; ++r) {
        gini += analysis::gini(counts[r]) / static_cast<double>(about.kv_heads);
        fill += analysis::mma_fill(counts[r], about.query_heads / about.kv_heads) /
                static_cast<double>(about.kv_heads);
        chunks += analysis::chunks(counts[r], selector.top_k, about.block_size);
    }
    to.attribute(dataset, "gini", gini);
    to.attribute(dataset, "mma_fill", fill);
    to.attribute(dataset, "chunks", chunks);
}

void write_dense(const Tally& tally, const LayerAbout& about, const std::string& layer,
                 io::UnitWriter& to) {
    const auto sink =
        tally.total("dense/sink", analysis::SinkMass(about.query_heads, about.sink_tokens));
    const auto first_block = tally.total(
        "dense/first_block",
        FirstBlockMass{std::vector<analysis::Mean>(static_cast<size_t>(about.kv_heads))});
    Metrics metrics(to, "/metrics/dense/" + layer);
    metrics.add("sink_mass_dense", sink.first_token(), "sink_mass");
    metrics.add("sink_mass_first_tokens", sink.first_tokens());
    metrics.add("sink_mass_first_block", analysis::values(first_block.means));
    metrics.add("entropy_dense",
                tally.total("dense/entropy", analysis::Entropy(about.query_heads)).nats(),
                "entropy");
    tally.total("dense/oracle_curve", Curve(about.oracle_ks)).write(to, "/curves/oracle/" + layer);
}

void write_selector(const Tally& tally, const LayerAbout& about,
                    const LayerAbout::OfSelector& selector, const std::string& layer,
                    io::UnitWriter& to) {
    const std::string &label = selector.label, at = "/" + label + "/" + layer;
    const auto recall = tally.total(label + "/recall", analysis::Recall(about.kv_heads, {}));
    const auto error =
        tally.total(label + "/output_error", analysis::OutputError(about.query_heads));
    Metrics metrics(to, "/metrics" + at);
    metrics.add("block_recall", recall.block_recall());
    metrics.add("score_recall", recall.score_recall());
    metrics.add("mass_kept", recall.mass_kept());
    metrics.add("oracle_mass", recall.oracle_mass());
    metrics.add_with_mean("output_error", error.relative(), error.mean());
    to.attribute("/metrics" + at, "dead_heads", error.dead_heads());
    metrics.add(
        "sink_mass_sparse",
        tally.total(label + "/sink", analysis::SinkMass(about.query_heads, about.sink_tokens))
            .first_token());
    metrics.add("entropy_sparse",
                tally.total(label + "/entropy", analysis::Entropy(about.query_heads)).nats());
    measure::write_ties(tally, label, about.kv_heads, metrics);
    if (!selector.is_oracle)
        tally.total(label + "/curve", Curve(selector.ks)).write(to, "/curves" + at);
    write_popularity(tally, about, selector, "/popularity" + at + "/queries_per_block", to);
}

}  // namespace

void RowCounts::add(std::span<const RowKind> kinds) {
    counted += std::count(kinds.begin(), kinds.end(), RowKind::counted);
    trivial += std::count(kinds.begin(), kinds.end(), RowKind::trivial);
}

void RowCounts::join(const analysis::State& state) {
    analysis::require_state("rows", state, 0, 2);
    counted += state.counts[0];
    trivial += state.counts[1];
}

void FirstBlockMass::add(std::span<const RowKind> kinds, View<const float, 3> mass) {
    for (int64_t i = 0; i < mass.extent(0); ++i)
        if (kinds[static_cast<size_t>(i)] != RowKind::without_keys)
            for (int64_t r = 0; r < mass.extent(1); ++r)
                means[static_cast<size_t>(r)].add(mass(i, r, 0));
}

std::vector<int64_t> Curve::points(const Problem& p, const SelectionRule& rule) {
    std::vector<int64_t> ks;
    for (int64_t k = 1; k < p.blocks(); k *= 2) ks.push_back(k);
    ks.push_back(std::max<int64_t>(1, p.blocks()));
    ks.push_back(rule.top_k);
    std::erase_if(ks, [&](int64_t k) { return k < rule.forced_local + rule.forced_first; });
    std::sort(ks.begin(), ks.end());
    ks.erase(std::unique(ks.begin(), ks.end()), ks.end());
    return ks;
}

Curve::Picked Curve::pick_all(const measure::MeasuredChunk& chunk, const measure::Choice& choice,
                              const std::vector<int64_t>& ks, In<3> scores, bool without_local) {
    SelectionRule used = choice.used, of_oracle = choice.rule;
    Picked all{{}, {}, without_local};
    for (int64_t k : ks) {
        used.top_k = of_oracle.top_k = k;
        all.own.push_back(pick(chunk.queries.backend(), chunk.problem, used, scores));
        all.best.push_back(&chunk.oracle(of_oracle));
    }
    return all;
}

void Curve::add(const measure::BlockRows& of, std::span<const RowKind> kinds, const Picked& picked,
                View<const float, 3> mass) {
    const Problem& p = of.problem;
    const auto visible = visible_keys(p);
    for (size_t n = 0; n < ks_.size(); ++n) {
        const View<const int32_t, 3> own = of.of(picked.own[n]), best = of.of(*picked.best[n]);
        const auto measure = [&](int64_t row, analysis::RowValues values) {
            const int64_t i = row / p.kv_heads, r = row % p.kv_heads;
            if (kinds[static_cast<size_t>(i)] != RowKind::counted) return;
            const int64_t local = (visible[static_cast<size_t>(i)].count - 1) / p.block_size;
            const std::span<const int32_t> ids = selected(own, i, r);
            const analysis::RowRecall found = analysis::recall_of(
                mass[i][r], ids, selected(best, i, r), picked.without_local ? local : -1);
            values[kMassKept] = analysis::mass_of(mass[i][r], ids);
            values[kBlockRecall] = found.block_recall;
            values[kScoreRecall] = found.score_recall;
        };
        analysis::add_rows({&means_[kCount * n], kCount}, p.queries() * p.kv_heads, measure);
    }
}

void Curve::write(io::UnitWriter& to, const std::string& group) const {
    const auto n = static_cast<int64_t>(ks_.size());
    to.write<int64_t, 1>(group + "/k", {ks_.data(), {n}},
                         {"point", "blocks", "selected blocks per query and group"});
    const std::vector<double> all = analysis::values(means_);
    const auto write = [&](Metric metric, const char* name, const char* unit, const char* what) {
        std::vector<double> of;
        for (size_t at = metric; at < all.size(); at += kCount) of.push_back(all[at]);
        to.write<double, 1>(concat(group, "/", name), {of.data(), {n}}, {"point", unit, what});
    };
    write(kMassKept, "mass_kept", "probability", "mass kept, mean over counted rows and groups");
    write(kBlockRecall, "block_recall", "1",
          "block recall, likewise; the oracle has k blocks, too");
    write(kScoreRecall, "score_recall", "1", "score recall, likewise");
}

void write_metrics(const Tally& tally, const std::string& layer, io::UnitWriter& to) {
    const LayerAbout about = nlohmann::json::parse(tally.about);
    write_dense(tally, about, layer, to);
    for (const LayerAbout::OfSelector& selector : about.selectors)
        write_selector(tally, about, selector, layer, to);
    const auto rows = tally.total("dense/rows", RowCounts());
    std::vector<std::string> names{"dense"};
    for (const LayerAbout::OfSelector& selector : about.selectors) names.push_back(selector.label);
    for (const std::string& name : names) {
        const std::string group = concat("/metrics/", name, "/", layer);
        to.attribute(group, "rows_counted", rows.counted);
        to.attribute(group, "rows_trivial", rows.trivial);
    }
}

}  // namespace msa::experiments::analyze
