// SPDX-License-Identifier: MIT
#include "experiments/compare/sums.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <type_traits>

#include "analysis/metrics.h"
#include "experiments/driver/metrics.h"
#include "experiments/driver/parts.h"

namespace msa::experiments::compare {
namespace {

using analysis::State;

const std::string kDistances = "/state/distances/";

/// Calls visit(name, sums) of each accumulator that a config has.
template <typename Sums, typename Visit>
void visit_config(Sums& of, const std::string& key, const Visit& visit) {
    visit(key + "/reading", of.reading);
    visit(key + "/group_output_error", of.output_error);
    if constexpr (std::is_same_v<std::remove_const_t<Sums>, BlockConfigSums>) {
        visit(key + "/recall", of.recall);
        visit(key + "/overlap", of.overlap);
    } else {
        visit(key + "/mass", of.mass);
    }
}

template <typename Sums>
measure::States all_states(const Sums& of, const std::string& key) {
    measure::States states;
    visit_config(of, key, [&](const std::string& name, const auto& sums) {
        states.emplace_back(name, sums.state());
    });
    return states;
}

/// Of all blocks of the layer.
template <typename Sums>
Sums total(const LayerSums& layer, const std::string& key) {
    Sums of(layer.groups);
    visit_config(of, key,
                 [&](const std::string& name, auto& sums) { layer.sums.total(name, sums); });
    return of;
}

/// What all configs have, at "/<c>/<l>".
void write_config(io::UnitWriter& to, const std::string& at, const ConfigSums& sums,
                  const LayerSums& layer) {
    const std::string group = "/metrics" + at;
    Metrics(to, group).add_with_mean("group_output_error", sums.output_error.relative(),
                                     sums.output_error.mean());
    to.attribute(group, "dead_groups", sums.output_error.dead_heads());
    sums.reading.write(to, group, layer.views);
}

void write_sums(io::UnitWriter& to, const std::string& at, const BlockConfigSums& sums,
                const analysis::Distances& distances) {
    Metrics metrics(to, "/metrics" + at);
    metrics.add("mass_kept", sums.recall.mass_kept());
    metrics.add("oracle_mass", sums.recall.oracle_mass());
    metrics.add("score_recall", sums.recall.score_recall());
    metrics.add("block_recall", sums.recall.block_recall());
    const Tensor<double, 2> overlap = sums.overlap.matrix();
    const analysis::Metric& of = analysis::metric("group_overlap");
    to.write<double, 2>("/overlap" + at, overlap.view(), {of.axis, of.unit, of.definition});
    const std::vector<int64_t>& counts = distances.counts();
    to.write<int64_t, 1>("/distance" + at, {counts.data(), {std::ssize(counts)}},
                         {"distance", "blocks",
                          "selected blocks by distance from the query's own, over counted rows and "
                          "groups"});
}

void write_sums(io::UnitWriter& to, const std::string& at, const TokenConfigSums& sums) {
    const std::string group = "/metrics" + at;
    Metrics(to, group).add("mass_kept", analysis::values(sums.mass.means));
    for (const char* name : {"oracle_mass", "score_recall", "block_recall"})
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

measure::States states_of(const BlockConfigSums& of, const std::string& key) {
    return all_states(of, key);
}

measure::States states_of(const TokenConfigSums& of, const std::string& key) {
    return all_states(of, key);
}

void LayerSums::keep_tokens(const std::string& key) {
    if (std::find(of_tokens.begin(), of_tokens.end(), key) == of_tokens.end())
        of_tokens.push_back(key);
}

void LayerSums::write(io::UnitWriter& to, const std::string& layer) const {
    sums.write(to, layer);
    for (const auto& [key, counts] : distances) {
        const std::string at = text("/", key, "/", layer);
        const auto of = total<BlockConfigSums>(*this, key);
        write_config(to, at, of, *this);
        write_sums(to, at, of, counts);
    }
    for (const std::string& key : of_tokens) {
        const std::string at = text("/", key, "/", layer);
        const auto of = total<TokenConfigSums>(*this, key);
        write_config(to, at, of, *this);
        write_sums(to, at, of);
    }
    checks.write(to, layer);
}

void LayerSums::store(io::UnitWriter& to, const std::string& layer) const {
    sums.write(to, layer);
    to.attribute("/state", "groups", groups);
    to.attribute("/state", "views", views);
    for (const auto& [key, of] : distances) store_list(to, kDistances + key, of.counts());
    store_state(to, "/state/checks", checks.state());
}

void LayerSums::append(const io::DatasetReader& part, const std::string& layer) {
    sums.append(part, layer);
    groups = stored_integer(part, "/state", "groups");
    views = stored_integer(part, "/state", "views");
    for (const std::string& key : part.list("/metrics")) {
        if (part.text("/metrics/" + key + "/" + layer, "kind") == "tokens") {
            keep_tokens(key);
            continue;
        }
        const std::vector<int64_t> counts = stored_list(part, kDistances + key);
        keep_blocks(key, std::ssize(counts));
        distances.at(key).join({{}, counts});
    }
    checks.join(stored_state(part, "/state/checks"));
}

}  // namespace msa::experiments::compare
