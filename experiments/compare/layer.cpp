// SPDX-License-Identifier: MIT
#include "experiments/compare/layer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/select/token_selector.h"
#include "experiments/compare/comparison.h"
#include "experiments/driver/block_intervals.h"
#include "experiments/driver/layers.h"

namespace msa::experiments::compare {
namespace {

void write_sizes(const LayerTask& task, Problem p, int64_t largest_budget) {
    p.query_heads = task.data.info.query_heads;  // of all views
    write_layer(task.to, task.data.info, p,
                {{"tokens", p.keys()},
                 {"queries", std::ssize(task.tokens)},
                 {"largest_budget", largest_budget}});
}

void note_timing(io::UnitWriter& to, const std::map<std::string, Timing>& of) {
    nlohmann::ordered_json timing;
    for (const auto& [selector, seconds] : of)
        timing[selector] = {{"select_seconds", seconds.select},
                            {"measure_seconds", seconds.evaluate}};
    to.note("timing", timing.dump());
}

}  // namespace

bool same_sizes(const io::LayerInfo& a, const io::LayerInfo& b) {
    return a.query_heads == b.query_heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim;
}

std::string why_unusable(const CompareOptions& o, const io::LayerInfo& layer, bool has_previous,
                         const std::string& name) {
    const Policy::Needs needs = make_policy(name)->needs();
    if (const std::string lacks = lacking(needs, layer, o.block_size); !lacks.empty())
        return "the layer has no " + lacks + (needs.rope ? "" : "; msa-fit-indexer makes them");
    if (needs.gate && o.ablation == Ablation::block_size)
        return "its operands are for one block size";
    if (needs.previous_layer && !has_previous)
        return "the file has no layer of the same sizes before it";
    if (needs.phases == Phases::prefill && o.prompt > 0)
        return "it is a rule for the prefill phase";
    if (needs.phases == Phases::decode && o.prompt == 0)
        return "it is a rule for the decode phase: --phase decode";
    if (needs.uses_rule(o.prompt) && o.sharing == Sharing::layer)
        return "it spends its budget group by group, which --share layer takes from it";
    return "";
}

void compare_part(const CompareOptions& o, const io::ActivationsReader& file, const LayerPart& part,
                  const io::LayerInfo* previous, const std::vector<std::string>& selectors,
                  const std::vector<int64_t>& tokens, const Worker& worker, io::UnitWriter& to) {
    Backend& backend = worker.backend;
    const io::LayerInfo& layer = part.layer;
    const std::string name = std::to_string(layer.layer);
    const LayerElements elements = layer_elements(backend, layer, o.element);
    const int64_t views = o.sharing == Sharing::head ? layer.query_heads / layer.kv_heads : 1;
    const LayerData data(file, layer, elements, views);
    std::optional<PreviousLayer> before;
    if (previous != nullptr)
        before.emplace(file, *previous, layer_elements(backend, *previous, o.element), views,
                       backend);
    const Problem sizes = data.problem(o.block_size);
    const std::vector<Plan> plans = make_plans(o, selectors, sizes);
    const Counted counted(sizes.with_query_rows(tokens), tokens, plans.front().largest_budget);
    LayerTask task{.options = o,
                   .data = data,
                   .previous = before ? &*before : nullptr,
                   .tokens = tokens,
                   .counted = counted,
                   .part = part.queries,
                   .stored = {},
                   .backend = backend,
                   .to = to,
                   .sums = {sizes.kv_heads, data.views, counted.blocks.rows}};
    if (o.sharing != Sharing::head) task.stored.emplace(to, name, tokens, part.queries, o.seed);
    Progress progress(worker.progress, part.name(),
                      (part.queries.end - part.queries.begin) * std::ssize(plans) * data.views,
                      "queries");
    for (const Plan& plan : plans) {
        LayerComparison comparison(task, plan);
        comparison.run(progress);
        comparison.write_about();
    }
    write_sizes(task, sizes, plans.front().largest_budget);
    write_query_blocks(to, "/query_blocks/" + name, counted.blocks);
    if (task.stored) task.stored->write_queries();
    if (previous != nullptr &&
        std::find(selectors.begin(), selectors.end(), "previous-layer") != selectors.end())
        to.attribute("/layers/" + name, "previous_layer", previous->layer);
    if (part.is_whole)
        task.sums.write(to, name);
    else
        task.sums.store(to);
    task.sums.checks.warn(part.name(), worker.err);
    note_timing(to, task.timing);
}

}  // namespace msa::experiments::compare
