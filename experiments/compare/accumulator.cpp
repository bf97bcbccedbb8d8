// SPDX-License-Identifier: MIT
#include "experiments/compare/accumulator.h"

#include <algorithm>

#include "analysis/cost_model.h"
#include "core/select/cost.h"
#include "core/select/selector.h"
#include "core/select/token_selector.h"
#include "experiments/driver/metrics.h"

namespace msa::experiments::compare {
namespace {

/// Keys of the chosen blocks that a query of `seen` keys reads.
int64_t tokens_of(std::span<const int32_t> blocks, int64_t seen, int64_t block_size) {
    int64_t tokens = 0;
    for (int32_t b : blocks) tokens += std::min(block_size, seen - b * block_size);
    return tokens;
}

}  // namespace

Reading::Reading(Config config, size_t views, int64_t groups)
    : config_(std::move(config)),
      views_(static_cast<int64_t>(views)),
      blocks_(static_cast<size_t>(groups)),
      tokens_(blocks_) {}

void Reading::add_index_cost(const Policy& policy, const Problem& phase, int64_t prompt) {
    const PolicyCost all = policy.cost(phase, prompt);
    const auto queries = static_cast<double>(std::max<int64_t>(1, phase.queries()));
    index_ = index_ + analysis::Cost{all.flops / queries, all.bytes / queries};
}

void Reading::add_query(const analysis::Cost& attention) {
    ++queries_;
    attention_ = attention_ + attention;
}

void Reading::add_counted(int64_t group, int64_t blocks, int64_t tokens) {
    blocks_[static_cast<size_t>(group)].add(static_cast<double>(blocks));
    tokens_[static_cast<size_t>(group)].add(static_cast<double>(tokens));
}

void Reading::write(io::UnitWriter& to, const std::string& group, const Policy& policy,
                    int64_t block_size) const {
    Metrics metrics(to, group);
    metrics.add("blocks_kept", analysis::values(blocks_));
    metrics.add("tokens_read", analysis::values(tokens_));
    to.attribute(group, "selector", config_.selector);
    to.attribute(group, "setting", config_.setting);
    to.attribute(group, "rule", policy.rule_in_full());
    to.attribute(group, "family", std::string(to_string(policy.family())));
    to.attribute(group, "kind",
                 std::string(find_token_selector(config_.selector) ? "tokens" : "blocks"));
    for (const auto& [name, value] : {std::pair{"budget", config_.budget},
                                      {"block_size", block_size},
                                      {"top_k", config_.used.top_k},
                                      {"forced_first", config_.used.forced_first},
                                      {"forced_local", config_.used.forced_local},
                                      {"uneven", int64_t{config_.uneven}},
                                      {"matched_budget", config_.matched_budget},
                                      {"tokens_allowed", config_.rule.top_k * block_size},
                                      {"rows_counted", counted_ / views_}})
        to.attribute(group, name, value);
    // The queries came once for each view; the layer is all of them together.
    const double queries =
        static_cast<double>(std::max<int64_t>(1, queries_)) / static_cast<double>(views_);
    for (const auto& [name, value] : {std::pair{"index_flops", index_.flops},
                                      {"index_bytes", index_.bytes},
                                      {"attention_flops", attention_.flops / queries},
                                      {"attention_bytes", attention_.bytes / queries}})
        to.attribute(group, name, value);
}

void write_blocks(io::UnitWriter& to, const std::string& at, const analysis::BlockSums& sums,
                  std::span<const int64_t> rows, int64_t views) {
    if (rows.empty()) return;
    Tensor<double, 3> columns({std::ssize(rows), sums.mass.extent(1), 2});
    for (int64_t m = 0; m < columns.extent(0); ++m)
        for (int64_t r = 0; r < columns.extent(1); ++r) {
            columns(m, r, 0) =
                sums.mass(m, r) / static_cast<double>(views * rows[static_cast<size_t>(m)]);
            columns(m, r, 1) = sums.difference(m, r);
        }
    to.write<double, 3>("/blocks" + at, std::as_const(columns).view(),
                        {"block,group,column", "",
                         "columns: mass kept, mean over the queries of a block; sum of |o_sparse - "
                         "o_dense|^2 over them and the group's heads"});
}

Accumulator::Accumulator(Config config, const Problem& layer, const analysis::QueryBlocks& blocks,
                         size_t views)
    : reading_(std::move(config), views, layer.kv_heads),
      recall_(layer.kv_heads, {}),
      output_error_(layer.kv_heads),
      blocks_(blocks),
      sums_(blocks.count(), layer.kv_heads),
      overlap_(layer.kv_heads),
      distances_(layer.blocks()) {}

void Accumulator::add(const MeasuredChunk& chunk, View<const int32_t, 3> ids,
                      View<const double, 2> differences) {
    const Problem& p = chunk.problem;
    recall_.add(p, chunk.kinds, ids, chunk.oracle_ids, chunk.mass);
    Tensor<double, 2> kept(differences.shape());
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r)
            kept(i, r) = analysis::mass_of(chunk.mass[i][r], selected(ids, i, r));
    output_error_.add(chunk.kinds, differences, chunk.norm);
    sums_.add(chunk.blocks, kept, differences, chunk.norm);
    overlap_.add(chunk.kinds, ids);
    distances_.add(p, chunk.kinds, ids);
    const std::vector<KeyRange>& visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const auto row = static_cast<size_t>(i);
        const bool counted = chunk.kinds[row] == analysis::RowKind::counted;
        if (counted) reading_.count_row();
        double pairs = 0;
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const std::span<const int32_t> row_ids = selected(ids, i, r);
            const int64_t tokens = tokens_of(row_ids, visible[row].count, p.block_size);
            pairs += static_cast<double>(tokens);
            if (counted) reading_.add_counted(r, std::ssize(row_ids), tokens);
        }
        const double products = pairs * static_cast<double>(p.head_dim);
        reading_.add_query(
            {4 * static_cast<double>(p.group_size()) * products, 2 * kCostElementBytes * products});
    }
}

void Accumulator::write(io::UnitWriter& to, const std::string& layer, const Problem& p) const {
    const std::string at = "/" + config().key() + "/" + layer, group = "/metrics" + at;
    Metrics metrics(to, group);
    metrics.add("mass_kept", recall_.mass_kept());
    metrics.add("oracle_mass", recall_.oracle_mass());
    metrics.add("score_recall", recall_.score_recall());
    metrics.add("block_recall", recall_.block_recall());
    metrics.add_with_mean("group_output_error", output_error_.relative(), output_error_.mean(),
                          "output_error");
    to.attribute(group, "dead_groups", output_error_.dead_heads());
    reading_.write(to, group, *make_policy(config().selector), p.block_size);
    write_blocks(to, at, sums_, blocks_.rows, reading_.views());

    const Tensor<double, 2> overlap = overlap_.matrix();
    const analysis::Metric& of = analysis::metric("group_overlap");
    to.write<double, 2>("/overlap" + at, overlap.view(), {of.axis, of.unit, of.definition});
    const std::vector<int64_t>& counts = distances_.counts();
    to.write<int64_t, 1>("/distance" + at, {counts.data(), {std::ssize(counts)}},
                         {"distance", "blocks",
                          "selected blocks by distance from the query's own, over counted rows and "
                          "groups"});
}

}  // namespace msa::experiments::compare
