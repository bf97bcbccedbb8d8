// SPDX-License-Identifier: MIT
#include "experiments/compare/layer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "analysis/overlap.h"
#include "core/cu_seqlens.h"
#include "core/select/cost.h"
#include "core/select/selector.h"
#include "experiments/compare/plan.h"
#include "experiments/compare/sums.h"
#include "experiments/compare/tokens.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/sample.h"
#include "experiments/measure/ties.h"
#include "experiments/programs.h"

namespace msa::experiments::compare {
namespace {

using measure::MeasuredChunk;

constexpr int64_t kStoredRows = 1024;  // at most, the same queries for all configs

const measure::LayerForm kForm{{"/queries", "/select"}, {"/layers", "/metrics"}, write_configs};

/// Keys of the chosen blocks that a query of `seen` keys reads.
int64_t tokens_of(std::span<const int32_t> blocks, int64_t seen, int64_t block_size) {
    int64_t tokens = 0;
    for (int32_t b : blocks) tokens += std::min(block_size, seen - b * block_size);
    return tokens;
}

analysis::State reading_of(const measure::BlockRows& of, std::span<const analysis::RowKind> kinds,
                           View<const int32_t, 3> kept) {
    const Problem& p = of.problem;
    const std::vector<KeyRange>& visible = visible_keys(p);
    Reading reading(p.kv_heads);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const auto row = static_cast<size_t>(i);
        const bool counted = kinds[row] == analysis::RowKind::counted;
        if (counted) reading.count_row();
        double pairs = 0;
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const std::span<const int32_t> ids = selected(kept, i, r);
            const int64_t tokens = tokens_of(ids, visible[row].count, p.block_size);
            pairs += static_cast<double>(tokens);
            if (counted) reading.add_counted(r, std::ssize(ids), tokens);
        }
        const double products = pairs * static_cast<double>(p.head_dim);
        reading.add_query(
            {4 * static_cast<double>(p.group_size()) * products, 2 * kCostElementBytes * products});
    }
    return reading.state();
}

/// Attributes of a config's group of metrics.
void write_about(const Config& config, const analysis::Cost& index, const std::string& group,
                 io::UnitWriter& to) {
    const std::unique_ptr<Policy> policy = make_policy(config.selector);
    to.attribute(group, "selector", config.selector);
    to.attribute(group, "setting", config.setting);
    to.attribute(group, "rule", policy->rule_in_full());
    to.attribute(group, "family", std::string(to_string(policy->family())));
    to.attribute(group, "kind", std::string(config.of_tokens ? "tokens" : "blocks"));
    for (const auto& [name, value] : {std::pair{"budget", config.budget},
                                      {"block_size", config.block_size},
                                      {"top_k", config.used.top_k},
                                      {"forced_first", config.used.forced_first},
                                      {"forced_local", config.used.forced_local},
                                      {"uneven", int64_t{config.uneven}},
                                      {"matched_budget", config.matched_budget},
                                      {"tokens_allowed", config.rule.top_k * config.block_size}})
        to.attribute(group, name, value);
    to.attribute(group, "index_flops", index.flops);
    to.attribute(group, "index_bytes", index.bytes);
}

/// What choosing costs a config, per query of the phase, of all views.
analysis::Cost index_cost(const Config& config, const Phase& phase, int64_t views) {
    const PolicyCost all = make_policy(config.selector)->cost(phase);
    const auto queries = static_cast<double>(std::max<int64_t>(1, phase.problem.queries()));
    analysis::Cost cost;
    for (int64_t view = 0; view < views; ++view)
        cost = cost + analysis::Cost{all.flops / queries, all.bytes / queries};
    return cost;
}

/// The configs of a layer, and what msa-compare measures of them beside the common
/// sums.
class Comparison : public measure::Observer {
public:
    Comparison(measure::Task& task, measure::Tally& tally, io::UnitWriter& to)
        : task_(task), tally_(tally), to_(to), tokens_(tally) {
        if (task.data.views > 1) return;  // the ids of a view are not the layer's
        stored_ = stratified_sample(std::ssize(task.queries.tokens), kStoredRows, task.seed);
        std::erase_if(stored_,
                      [&](int64_t n) { return n < task.part.begin || n >= task.part.end; });
    }

    void add(const Config& config, int64_t largest_budget) {
        const Problem sizes = task_.data.problem(config.block_size);
        const Problem phase = phase_queries(sizes, task_.prompt);
        write_about(
            config,
            index_cost(config, {phase, task_.prompt, task_.data.info.learned}, task_.data.views),
            concat("/metrics/", config.key, "/", task_.data.info.layer), to_);
        task_.block_sizes.push_back(config.block_size);
        if (config.of_tokens) {
            tokens_.add(config, mean_tokens(phase, config.rule.top_k, largest_budget));
            about_.of_tokens.push_back(config.key);
            ++task_.of_heads;
            return;
        }
        task_.choices.push_back(config);
        task_.of_blocks += int64_t{config.uneven};
        distances_.emplace_back(sizes.blocks());
        about_.blocks[config.key] = sizes.blocks();
        if (task_.data.views == 1)
            to_.create<int32_t, 3>(ids_of(config),
                                   {std::ssize(stored_), sizes.kv_heads, config.used.top_k},
                                   {"query,group,slot", "block of the sequence",
                                    make_selector(config.selector)->rule_in_full()});
    }

    void begin(const SelectorLayer& layer) override { tokens_.begin(layer); }
    void scored(const MeasuredChunk& chunk, size_t n, const Mirror<3>& scores) override {
        measure::add_ties(chunk, task_.choices[n], scores.host(), tally_);
    }
    void chosen(const MeasuredChunk& chunk, size_t n, View<const int32_t, 3> ids,
                const Attention*) override {
        const std::string& key = task_.choices[n].key;
        distances_[n].add(chunk.problem, chunk.kinds, ids);
        tally_.sums.add(chunk.blocks, [&](const measure::BlockRows& of) {
            const std::span<const analysis::RowKind> kinds = of.of(chunk.kinds);
            analysis::GroupOverlap overlap(chunk.problem.kv_heads);
            overlap.add(kinds, of.of(ids));
            return measure::States{{key + "/overlap", overlap.state()},
                                   {key + "/reading", reading_of(of, kinds, of.of(ids))}};
        });
        store(task_.choices[n], chunk.range, ids);
    }
    void done(const MeasuredChunk& chunk) override { tokens_.measure(chunk); }

    /// What the tally has to have of all queries.
    void finish(const Problem& sizes) {
        about_.groups = sizes.kv_heads;
        about_.heads = sizes.query_heads;
        about_.views = task_.data.views;
        tally_.about = nlohmann::json(about_).dump();
        for (size_t n = 0; n < distances_.size(); ++n)
            tally_.totals[task_.choices[n].key + "/distances"] = distances_[n].state();
        if (task_.data.views > 1) return;
        std::vector<int64_t> tokens;
        for (int64_t n : stored_) tokens.push_back(task_.queries.tokens[static_cast<size_t>(n)]);
        to_.write<int64_t, 1>(concat("/queries/", task_.data.info.layer, "/token"),
                              {tokens.data(), {std::ssize(tokens)}},
                              {"query", "token", "packed token index of each query in /select"});
    }

private:
    std::string ids_of(const measure::Choice& choice) const {
        return concat("/select/", choice.key, "/", task_.data.info.layer, "/ids");
    }
    /// The ids [n, Hkv, k] of the sampled ones among the compared queries `range`.
    void store(const measure::Choice& choice, QueryRange range, View<const int32_t, 3> ids) {
        const auto begin = std::ranges::lower_bound(stored_, range.begin);
        const auto end = std::lower_bound(begin, stored_.end(), range.end);
        if (begin == end) return;
        Tensor<int32_t, 3> rows({end - begin, ids.extent(1), ids.extent(2)});
        for (auto row = begin; row != end; ++row)
            std::copy_n(ids[*row - range.begin].data(), ids.extent(1) * ids.extent(2),
                        rows.view()[row - begin].data());
        to_.write_rows<int32_t, 3>(ids_of(choice), begin - stored_.begin(), rows);
    }

    measure::Task& task_;
    measure::Tally& tally_;
    io::UnitWriter& to_;
    std::vector<int64_t> stored_ = {};  // numbers of the queries whose ids are stored, ascending
    TokenConfigs tokens_;
    LayerAbout about_;
    std::vector<analysis::Distances> distances_;
};

void note_timing(io::UnitWriter& to, const measure::Tally& tally) {
    nlohmann::ordered_json timing;
    for (const auto& [selector, seconds] : tally.seconds)
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

measure::LayerQueries compared_queries(const CompareOptions& o, const io::ActivationsReader& file,
                                       const io::LayerInfo& layer,
                                       const std::vector<std::string>& selectors) {
    std::vector<int64_t> tokens =
        sampled_queries(o, file.info().cu_seqlens, layer.layer, o.seed, o.prompt);
    require(!tokens.empty(), "--prompt is ", o.prompt, ", no sequence is longer");
    const Problem whole = io::layer_problem(file.info(), layer, o.block_size);
    const int64_t beyond = make_plan(o, selectors, whole, layer.learned).largest_budget;
    const Problem p = whole.with_query_rows(tokens);
    const bool asks_for_all = std::ranges::any_of(
        o.budgets, [](const Budget& budget) { return budget.is_share && budget.value == 1; });
    require(asks_for_all || beyond < longest_sequence(file.info().cu_seqlens), "layer ",
            layer.layer, ": the largest of --budgets is ", beyond,
            " tokens in whole blocks, and no sequence is longer: there is nothing to choose; 1.0 "
            "asks for dense attention");
    return {p, std::move(tokens), analysis::rows_beyond(p, beyond)};
}

void compare_part(const CompareOptions& o, const io::ActivationsReader& file, const LayerPart& part,
                  const io::LayerInfo* previous, const std::vector<std::string>& selectors,
                  const measure::LayerQueries& queries, const Worker& worker, io::UnitWriter& to) {
    Backend& backend = worker.backend;
    const io::LayerInfo& layer = part.layer;
    const std::string name = std::to_string(layer.layer);
    const int64_t views = o.sharing == Sharing::head ? layer.query_heads / layer.kv_heads : 1;
    const measure::LayerData data(file, layer, layer_elements(backend, layer, o.element), views);
    std::optional<measure::LayerData> before;
    if (std::ranges::find(selectors, "previous-layer") == selectors.end()) previous = nullptr;
    if (previous != nullptr)
        before.emplace(file, *previous, layer_elements(backend, *previous, o.element), views);
    const Problem sizes = data.problem(o.block_size);
    const Plan plan = make_plan(o, selectors, sizes, layer.learned);
    const std::vector<int64_t> counted = queries.counted();
    measure::Task task{.data = data,
                       .queries = queries,
                       .part = part.queries,
                       .backend = backend,
                       .block_sizes = {},
                       .seed = o.seed,
                       .of_blocks = 8,
                       .error_of = measure::ErrorOf::group,
                       .with_scores = true,
                       .mean_scores = o.sharing == Sharing::layer,
                       .prompt = o.prompt,
                       .counted = counted,
                       .previous = before ? &*before : nullptr};
    measure::Tally tally{measure::Sums(queries.blocks, part.queries)};
    Comparison comparison(task, tally, to);
    for (const Config& config : plan.configs) comparison.add(config, plan.largest_budget);
    Progress progress(worker.progress, part.name(), (part.queries.end - part.queries.begin) * views,
                      "queries");
    measure::measure(task, tally, comparison, progress);
    comparison.finish(sizes);

    Problem whole = sizes;
    whole.query_heads = layer.query_heads;  // of all views
    write_layer(to, layer, whole,
                {{"tokens", whole.keys()},
                 {"queries", std::ssize(queries.tokens)},
                 {"largest_budget", plan.largest_budget}});
    if (previous != nullptr) to.attribute("/layers/" + name, "previous_layer", previous->layer);
    measure::write_tally(tally, kForm, part, worker, to);
    note_timing(to, tally);
}

void join_layer(const std::vector<std::filesystem::path>& parts, io::UnitWriter& to) {
    measure::join_layer(parts, kForm, to);
}

}  // namespace msa::experiments::compare
