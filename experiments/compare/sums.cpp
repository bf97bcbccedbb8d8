// SPDX-License-Identifier: MIT
#include "experiments/compare/sums.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "analysis/metrics.h"
#include "analysis/output_error.h"
#include "analysis/overlap.h"
#include "analysis/recall.h"
#include "analysis/sink.h"
#include "experiments/driver/metrics.h"
#include "experiments/measure/ties.h"

namespace msa::experiments::compare {
namespace {

using analysis::State;
using measure::Tally;

/// What all configs have.
void write_config(const Tally& tally, const LayerAbout& about, const std::string& key,
                  const std::string& group, io::UnitWriter& to) {
    const auto error =
        tally.total(key + "/group_output_error", analysis::OutputError(about.groups));
    Metrics(to, group).add_with_mean("group_output_error", error.relative(), error.mean());
    to.attribute(group, "dead_groups", error.dead_heads());
    tally.total(key + "/reading", Reading(about.groups)).write(to, group, about.views);
    const auto sink = tally.total("dense/sink", analysis::SinkMass(about.heads, 1));
    to.attribute(group, "sink_mass_dense", analysis::average(sink.first_token()));
}

void write_blocks(const Tally& tally, const LayerAbout& about, const std::string& key,
                  int64_t blocks, const std::string& layer, io::UnitWriter& to) {
    const std::string at = concat("/", key, "/", layer);
    const auto recall = tally.total(key + "/recall", analysis::Recall(about.groups, {}));
    Metrics metrics(to, "/metrics" + at);
    metrics.add("mass_kept", recall.mass_kept());
    metrics.add("oracle_mass", recall.oracle_mass());
    metrics.add("score_recall", recall.score_recall());
    metrics.add("block_recall", recall.block_recall());
    metrics.add("sink_mass_sparse",
                tally.total(key + "/sink", analysis::SinkMass(about.heads, 1)).first_token());
    measure::write_ties(tally, key, about.groups, metrics);
    const Tensor<double, 2> overlap =
        tally.total(key + "/overlap", analysis::GroupOverlap(about.groups)).matrix();
    const analysis::Metric& of = analysis::metric("group_overlap");
    to.write<double, 2>("/overlap" + at, overlap.view(), {of.axis, of.unit, of.definition});
    const auto distances = tally.total(key + "/distances", analysis::Distances(blocks));
    to.write<int64_t, 1>("/distance" + at, {distances.counts().data(), {blocks}},
                         {"distance", "blocks",
                          "selected blocks by distance from the query's own, over counted rows and "
                          "groups"});
}

void write_tokens(const Tally& tally, const LayerAbout& about, const std::string& key,
                  const std::string& group, io::UnitWriter& to) {
    Metrics(to, group).add(
        "mass_kept",
        analysis::values(tally.total(key + "/mass", measure::KeptMass(about.groups)).means));
    for (const char* name : {"oracle_mass", "score_recall", "block_recall", "sink_mass_sparse"})
        to.attribute(group, name, std::nan(""));
}

}  // namespace

Reading::Reading(int64_t groups) : means_(static_cast<size_t>(2 * groups)) {}

void Reading::add_query(const analysis::Cost& attention) {
    ++queries_;
    attention_ = attention_ + attention;
}

void Reading::add_counted(int64_t group, int64_t blocks, int64_t tokens) {
    const auto at = static_cast<size_t>(group);
    means_[at].add(static_cast<double>(blocks));
    means_[means_.size() / 2 + at].add(static_cast<double>(tokens));
}

State Reading::state() const {
    State state = analysis::state_of(means_);
    state.sums.insert(state.sums.end(), {attention_.flops, attention_.bytes});
    state.counts.insert(state.counts.end(), {counted_, queries_});
    return state;
}

void Reading::join(const State& state) {
    const size_t n = means_.size();
    analysis::require_state("what is read", state, n + 2, n + 2);
    for (size_t at = 0; at < n; ++at) means_[at].join(state.sums[at], state.counts[at]);
    attention_ = attention_ + analysis::Cost{state.sums[n], state.sums[n + 1]};
    counted_ += state.counts[n];
    queries_ += state.counts[n + 1];
}

void Reading::write(io::UnitWriter& to, const std::string& group, int64_t views) const {
    const size_t groups = means_.size() / 2;
    Metrics metrics(to, group);
    metrics.add("blocks_kept", analysis::values(std::span(means_).first(groups)));
    metrics.add("tokens_read", analysis::values(std::span(means_).last(groups)));
    to.attribute(group, "rows_counted", counted_ / views);
    // The queries came once for each view; the layer is all of them together.
    const double queries =
        static_cast<double>(std::max<int64_t>(1, queries_)) / static_cast<double>(views);
    to.attribute(group, "attention_flops", attention_.flops / queries);
    to.attribute(group, "attention_bytes", attention_.bytes / queries);
}

void write_configs(const Tally& tally, const std::string& layer, io::UnitWriter& to) {
    const LayerAbout about = nlohmann::json::parse(tally.about);
    const auto group = [&](const std::string& key) { return concat("/metrics/", key, "/", layer); };
    for (const auto& [key, blocks] : about.blocks) {
        write_config(tally, about, key, group(key), to);
        write_blocks(tally, about, key, blocks, layer, to);
    }
    for (const std::string& key : about.of_tokens) {
        write_config(tally, about, key, group(key), to);
        write_tokens(tally, about, key, group(key), to);
    }
}

}  // namespace msa::experiments::compare
