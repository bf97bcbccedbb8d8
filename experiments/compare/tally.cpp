// SPDX-License-Identifier: MIT
#include "experiments/compare/tally.h"

#include <algorithm>

#include "analysis/cost_model.h"
#include "core/select/selector.h"
#include "experiments/driver/metrics.h"

namespace msa::experiments::compare {
namespace {

constexpr double kElementBytes = 2;  // as in selector_cost

}  // namespace

View<const float, 3> by_group(View<const float, 3> heads, int64_t groups) {
    return {heads.data(),
            {heads.extent(0), groups, heads.extent(1) / groups * heads.extent(2)},
            heads.space()};
}

void write_arm(io::ResultsWriter& to, const std::string& group, const Arm& arm,
               const std::string& rule, int64_t block_size, const SelectionRule& used,
               int64_t rows_counted) {
    to.attribute(group, "selector", arm.selector);
    to.attribute(group, "setting", arm.setting);
    to.attribute(group, "rule", rule);
    for (const auto& [name, value] : {std::pair{"budget", arm.budget},
                                      {"block_size", block_size},
                                      {"top_k", used.top_k},
                                      {"forced_first", used.forced_first},
                                      {"forced_local", used.forced_local},
                                      {"matched_budget", arm.matched_budget},
                                      {"rows_counted", rows_counted}})
        to.attribute(group, name, value);
}

void write_costs(io::ResultsWriter& to, const std::string& group, const analysis::Cost& index,
                 const analysis::Cost& attention, int64_t queries) {
    for (const auto& [name, value] : {std::pair{"index_flops", index.flops},
                                      {"index_bytes", index.bytes},
                                      {"attention_flops", attention.flops},
                                      {"attention_bytes", attention.bytes}})
        to.attribute(group, name, value / static_cast<double>(std::max<int64_t>(1, queries)));
}

Tally::Tally(Arm arm, const Problem& layer)
    : arm_(std::move(arm)),
      recall_(layer.kv_heads, {}),
      output_error_(layer.kv_heads),
      overlap_(layer.kv_heads),
      distances_(layer.blocks()),
      blocks_(static_cast<size_t>(layer.kv_heads)) {}

void Tally::add(const MeasuredChunk& chunk, View<const int32_t, 3> ids,
                View<const float, 3> sparse) {
    const Problem& p = chunk.problem;
    recall_.add(p, chunk.kinds, ids, chunk.oracle_ids, chunk.mass);
    output_error_.add(chunk.kinds, by_group(sparse, p.kv_heads), by_group(chunk.dense, p.kv_heads));
    overlap_.add(chunk.kinds, ids);
    distances_.add(p, chunk.kinds, ids);
    for (int64_t i = 0; i < p.queries(); ++i) {
        if (chunk.kinds[static_cast<size_t>(i)] != analysis::RowKind::counted) continue;
        ++counted_;
        for (int64_t r = 0; r < p.kv_heads; ++r)
            blocks_[static_cast<size_t>(r)].add(static_cast<double>(selected(ids, i, r).size()));
    }
    queries_ += p.queries();
    attention_.flops += analysis::sparse_attention_flops(p, ids);
    attention_.bytes +=
        kElementBytes * 2 * static_cast<double>(p.head_dim) * analysis::selected_pairs(p, ids);
}

void Tally::add_cost(const analysis::Cost& cost) { index_ = index_ + cost; }

void Tally::write(io::ResultsWriter& to, const std::string& layer, const Problem& p,
                  const SelectionRule& used) const {
    const std::string at = "/" + arm_.key() + "/" + layer, group = "/metrics" + at;
    Metrics metrics(to, group);
    metrics.add("mass_kept", recall_.mass_kept(), "group", "probability");
    metrics.add("oracle_mass", recall_.oracle_mass(), "group", "probability");
    metrics.add("score_recall", recall_.score_recall(), "group", "share of mass");
    metrics.add("block_recall", recall_.block_recall(), "group", "share of blocks");
    metrics.add("output_error", output_error_.relative(), "group", "relative");
    metrics.add("blocks_kept", analysis::values(blocks_), "group", "blocks");
    write_arm(to, group, arm_, std::string(make_selector(arm_.selector)->rule()), p.block_size,
              used, counted_);
    write_costs(to, group, index_, attention_, queries_);

    const Tensor<double, 2> overlap = overlap_.matrix();
    to.write<double, 2>("/overlap" + at, overlap.view(),
                        {"group,group", "IoU", "mean overlap of the blocks of two groups"});
    const std::vector<int64_t>& counts = distances_.counts();
    to.write<int64_t, 1>("/distance" + at, {counts.data(), {std::ssize(counts)}},
                         {"distance", "blocks",
                          "selected blocks by distance from the query's own, over counted rows and "
                          "groups"});
}

}  // namespace msa::experiments::compare
