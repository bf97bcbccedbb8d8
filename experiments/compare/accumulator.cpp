// SPDX-License-Identifier: MIT
#include "experiments/compare/accumulator.h"

#include <algorithm>

#include "core/select/cost.h"
#include "core/select/token_selector.h"

namespace msa::experiments::compare {
namespace {

/// Keys of the chosen blocks that a query of `seen` keys reads.
int64_t tokens_of(std::span<const int32_t> blocks, int64_t seen, int64_t block_size) {
    int64_t tokens = 0;
    for (int32_t b : blocks) tokens += std::min(block_size, seen - b * block_size);
    return tokens;
}

}  // namespace

void ConfigAbout::add_index_cost(const Policy& policy, const Problem& phase, int64_t prompt) {
    const PolicyCost all = policy.cost(phase, prompt);
    const auto queries = static_cast<double>(std::max<int64_t>(1, phase.queries()));
    index = index + analysis::Cost{all.flops / queries, all.bytes / queries};
}

void ConfigAbout::write(io::UnitWriter& to, const std::string& layer, int64_t block_size) const {
    const std::unique_ptr<Policy> policy = make_policy(config.selector);
    const std::string group = "/metrics/" + config.key() + "/" + layer;
    to.attribute(group, "selector", config.selector);
    to.attribute(group, "setting", config.setting);
    to.attribute(group, "rule", policy->rule_in_full());
    to.attribute(group, "family", std::string(to_string(policy->family())));
    to.attribute(group, "kind",
                 std::string(find_token_selector(config.selector) ? "tokens" : "blocks"));
    for (const auto& [name, value] : {std::pair{"budget", config.budget},
                                      {"block_size", block_size},
                                      {"top_k", config.used.top_k},
                                      {"forced_first", config.used.forced_first},
                                      {"forced_local", config.used.forced_local},
                                      {"uneven", int64_t{config.uneven}},
                                      {"matched_budget", config.matched_budget},
                                      {"tokens_allowed", config.rule.top_k * block_size}})
        to.attribute(group, name, value);
    to.attribute(group, "index_flops", index.flops);
    to.attribute(group, "index_bytes", index.bytes);
}

void Accumulator::add(const MeasuredChunk& chunk, View<const int32_t, 3> ids,
                      View<const int32_t, 3> oracle_ids, View<const double, 2> differences) {
    const std::string key = about_.config.key();
    sums_.distances.at(key).add(chunk.problem, chunk.kinds, ids);
    sums_.sums.add(chunk.blocks, [&](const measure::BlockRows& of) {
        const Problem& p = of.problem;
        const std::span<const analysis::RowKind> kinds = of.of(chunk.kinds);
        const View<const int32_t, 3> kept = of.of(ids);
        BlockConfigSums sums(p.kv_heads);
        sums.recall.add(p, kinds, kept, of.of(oracle_ids), of.of(chunk.mass));
        sums.output_error.add(kinds, of.of(differences), of.of(chunk.norm));
        sums.overlap.add(kinds, kept);
        const std::vector<KeyRange>& visible = visible_keys(p);
        for (int64_t i = 0; i < p.queries(); ++i) {
            const auto row = static_cast<size_t>(i);
            const bool counted = kinds[row] == analysis::RowKind::counted;
            if (counted) sums.reading.count_row();
            double pairs = 0;
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                const std::span<const int32_t> row_ids = selected(kept, i, r);
                const int64_t tokens = tokens_of(row_ids, visible[row].count, p.block_size);
                pairs += static_cast<double>(tokens);
                if (counted) sums.reading.add_counted(r, std::ssize(row_ids), tokens);
            }
            const double products = pairs * static_cast<double>(p.head_dim);
            sums.reading.add_query({4 * static_cast<double>(p.group_size()) * products,
                                    2 * kCostElementBytes * products});
        }
        return states_of(sums, key);
    });
}

}  // namespace msa::experiments::compare
