// SPDX-License-Identifier: MIT
#include "experiments/compare/sums.h"

#include <cmath>
#include <span>
#include <type_traits>

#include "analysis/metrics.h"
#include "experiments/driver/metrics.h"
#include "experiments/driver/parts.h"

namespace msa::experiments::compare {
namespace {

using analysis::State;

constexpr const char* kOfBlocks = "/state/of_blocks";
constexpr const char* kOfTokens = "/state/of_tokens";

/// Calls visit(group, sums) of each list of sums that a config has.
template <typename Sums, typename Visit>
void visit_config(Sums& of, const std::string& group, const Visit& visit) {
    visit(group + "/reading", of.reading);
    visit(group + "/output_error", of.output_error);
    visit(group + "/query_blocks", of.query_blocks);
    if constexpr (std::is_same_v<std::remove_const_t<Sums>, BlockConfigSums>) {
        visit(group + "/recall", of.recall);
        visit(group + "/overlap", of.overlap);
        visit(group + "/distances", of.distances);
    } else {
        visit(group + "/mass", of.mass);
    }
}

std::string group_of(const char* kind, const std::string& key) { return text(kind, "/", key); }

template <typename Sums, typename Visit>
void visit_all(Sums& of, const Visit& visit) {
    for (auto& [key, sums] : of.of_blocks) visit_config(sums, group_of(kOfBlocks, key), visit);
    for (auto& [key, sums] : of.of_tokens) visit_config(sums, group_of(kOfTokens, key), visit);
    visit("/state/checks", of.checks);
}

std::vector<std::string> list(const io::DatasetReader& from, const char* group) {
    return from.has(group) ? from.list(group) : std::vector<std::string>();
}

/// What intervals are made of: /blocks of a config, [M, Hkv, 2].
void write_blocks(io::UnitWriter& to, const std::string& at, const analysis::BlockSums& sums,
                  const LayerSums& layer) {
    if (layer.rows.empty()) return;
    Tensor<double, 3> columns({std::ssize(layer.rows), layer.groups, 2});
    for (int64_t m = 0; m < columns.extent(0); ++m)
        for (int64_t r = 0; r < columns.extent(1); ++r) {
            columns(m, r, 0) =
                sums.mass(m, r) /
                static_cast<double>(layer.views * layer.rows[static_cast<size_t>(m)]);
            columns(m, r, 1) = sums.difference(m, r);
        }
    to.write<double, 3>("/blocks" + at, std::as_const(columns).view(),
                        {"block,group,column", "",
                         "columns: mass kept, mean over the queries of a block; sum of |o_sparse - "
                         "o_dense|^2 over them and the group's heads"});
}

/// What all configs have, at "/<c>/<l>".
void write_config(io::UnitWriter& to, const std::string& at, const ConfigSums& sums,
                  const LayerSums& layer) {
    const std::string group = "/metrics" + at;
    Metrics(to, group).add_with_mean("group_output_error", sums.output_error.relative(),
                                     sums.output_error.mean(), "output_error");
    to.attribute(group, "dead_groups", sums.output_error.dead_heads());
    sums.reading.write(to, group, layer.views);
    write_blocks(to, at, sums.query_blocks, layer);
}

void write_sums(io::UnitWriter& to, const std::string& at, const BlockConfigSums& sums) {
    Metrics metrics(to, "/metrics" + at);
    metrics.add("mass_kept", sums.recall.mass_kept());
    metrics.add("oracle_mass", sums.recall.oracle_mass());
    metrics.add("score_recall", sums.recall.score_recall());
    metrics.add("block_recall", sums.recall.block_recall());
    const Tensor<double, 2> overlap = sums.overlap.matrix();
    const analysis::Metric& of = analysis::metric("group_overlap");
    to.write<double, 2>("/overlap" + at, overlap.view(), {of.axis, of.unit, of.definition});
    const std::vector<int64_t>& counts = sums.distances.counts();
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

ConfigSums::ConfigSums(int64_t groups, int64_t blocks_of_queries)
    : reading(groups), output_error(groups), query_blocks(blocks_of_queries, groups) {}

BlockConfigSums::BlockConfigSums(int64_t groups, int64_t blocks_of_queries, int64_t blocks)
    : ConfigSums(groups, blocks_of_queries),
      recall(groups, {}),
      overlap(groups),
      distances(blocks) {}

TokenConfigSums::TokenConfigSums(int64_t groups, int64_t blocks_of_queries)
    : ConfigSums(groups, blocks_of_queries),
      mass{std::vector<analysis::Mean>(static_cast<size_t>(groups))} {}

BlockConfigSums& LayerSums::keeping_blocks(const std::string& key, int64_t blocks) {
    return of_blocks.try_emplace(key, groups, std::ssize(rows), blocks).first->second;
}

TokenConfigSums& LayerSums::keeping_tokens(const std::string& key) {
    return of_tokens.try_emplace(key, groups, std::ssize(rows)).first->second;
}

void LayerSums::write(io::UnitWriter& to, const std::string& layer) const {
    const auto write_all = [&](const auto& of) {
        for (const auto& [key, sums] : of) {
            const std::string at = text("/", key, "/", layer);
            write_config(to, at, sums, *this);
            write_sums(to, at, sums);
        }
    };
    write_all(of_blocks);
    write_all(of_tokens);
    checks.write(to, layer);
    if (rows.empty()) return;
    const ConfigSums& any = of_blocks.empty()
                                ? static_cast<const ConfigSums&>(of_tokens.begin()->second)
                                : of_blocks.begin()->second;
    to.write<double, 2>("/query_blocks/" + layer + "/norm", any.query_blocks.norm.view(),
                        {"block,group", "",
                         "sum of |o_dense|^2 over the queries of a block and the group's heads"});
}

void LayerSums::store(io::UnitWriter& to) const {
    to.attribute("/state", "groups", groups);
    to.attribute("/state", "views", views);
    for (const auto& [key, sums] : of_blocks)
        to.attribute(group_of(kOfBlocks, key), "blocks",
                     int64_t{std::ssize(sums.distances.counts())});
    visit_all(*this,
              [&](const std::string& name, const auto& of) { store_state(to, name, of.state()); });
}

LayerSums LayerSums::stored(const io::DatasetReader& from, const std::string& layer) {
    const std::string query_blocks = "/query_blocks/" + layer + "/rows";
    LayerSums sums{
        .groups = stored_integer(from, "/state", "groups"),
        .views = stored_integer(from, "/state", "views"),
        .rows = from.has(query_blocks) ? stored_list(from, query_blocks) : std::vector<int64_t>()};
    for (const std::string& key : list(from, kOfBlocks))
        sums.keeping_blocks(key, stored_integer(from, group_of(kOfBlocks, key), "blocks"));
    for (const std::string& key : list(from, kOfTokens)) sums.keeping_tokens(key);
    sums.join(from);
    return sums;
}

void LayerSums::join(const io::DatasetReader& from) {
    visit_all(*this, [&](const std::string& name, auto& of) { of.join(stored_state(from, name)); });
}

}  // namespace msa::experiments::compare
