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

std::vector<Tensor<int32_t, 3>> Curve::pick_all(Backend& backend, const Problem& p,
                                                SelectionRule rule, const std::vector<int64_t>& ks,
                                                In<3> scores) {
    std::vector<Tensor<int32_t, 3>> all;
    for (int64_t k : ks) {
        rule.top_k = k;
        all.push_back(pick(backend, p, rule, scores));
    }
    return all;
}

void Curve::add(const measure::BlockRows& of, std::span<const RowKind> kinds,
                const std::vector<Tensor<int32_t, 3>>& picked, View<const float, 3> mass) {
    const Problem& p = of.problem;
    for (size_t n = 0; n < ks_.size(); ++n) {
        const View<const int32_t, 3> ids = of.of(picked[n]);
        analysis::add_rows({&means_[n], 1}, p.queries() * p.kv_heads,
                           [&](int64_t row, analysis::RowValues values) {
                               const int64_t i = row / p.kv_heads, r = row % p.kv_heads;
                               if (kinds[static_cast<size_t>(i)] == RowKind::counted)
                                   values[0] = analysis::mass_of(mass[i][r], selected(ids, i, r));
                           });
    }
}

void Curve::write(io::UnitWriter& to, const std::string& group) const {
    const auto n = static_cast<int64_t>(ks_.size());
    const std::vector<double> kept = analysis::values(means_);
    to.write<int64_t, 1>(group + "/k", {ks_.data(), {n}},
                         {"point", "blocks", "selected blocks per query and group"});
    to.write<double, 1>(group + "/mass_kept", {kept.data(), {n}},
                        {"point", "probability", "mass kept, mean over counted rows and groups"});
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
