// SPDX-License-Identifier: MIT
#include "experiments/compare/comparison.h"

#include <algorithm>

#include "core/tolerance.h"
#include "experiments/compare/stopwatch.h"
#include "experiments/driver/program.h"
#include "experiments/measure/choice_errors.h"

namespace msa::experiments::compare {
namespace {

constexpr int64_t kFullRows = 64;  // queries that are given all their blocks, as a check

/// Every group gets the mean of their scores: one choice for all.
Mirror<3> share_scores(Backend& backend, View<const float, 3> scores) {
    Tensor<float, 3> shared(scores.shape());
    for (int64_t i = 0; i < scores.extent(0); ++i)
        for (int64_t b = 0; b < scores.extent(2); ++b) {
            float sum = 0;
            for (int64_t r = 0; r < scores.extent(1); ++r) sum += scores(i, r, b);
            for (int64_t r = 0; r < scores.extent(1); ++r)
                shared(i, r, b) = sum / static_cast<float>(scores.extent(1));
        }
    return {backend, std::move(shared)};
}

Tensor<int32_t, 3> copy_of(const Tensor<int32_t, 3>& ids) {
    Tensor<int32_t, 3> copy(ids.shape(), Fill::nothing);
    std::copy_n(ids.data(), ids.size(), copy.data());
    return copy;
}

}  // namespace

/// A selector at work, and the configs of its name. Where the scores depend on the budget, each of
/// them has its own.
struct LayerComparison::Scorer {
    std::unique_ptr<Selector> selector;
    std::vector<size_t> configs;
    std::vector<SelectionRule> rules;  // asked for, distinct
    bool by_rule;                      // the scores depend on the rule
    bool in_order;                     // and on the queries before
};

LayerComparison::LayerComparison(LayerTask& task, Plan plan)
    : task_(task),
      plan_(std::move(plan)),
      sizes_(task.data.problem(plan_.block_size)),
      all_(sizes_.with_query_rows(task.queries.tokens)),
      phase_(phase_queries(sizes_, task.options.prompt)),
      k_norm_(largest_norm<3>(task.data.k)) {
    std::erase_if(plan_.configs, [&](const Config& config) {
        const bool of_tokens = find_token_selector(config.selector) != nullptr;
        if (of_tokens)
            token_configs_.emplace_back(
                config, mean_tokens(phase_, config.rule.top_k, plan_.largest_budget), task.sums);
        return of_tokens;
    });
    for (const Config& config : plan_.configs) {
        accumulators_.emplace_back(config, task.sums, sizes_.blocks());
        needs_logits_ |= make_selector(config.selector)->needs().max_logit;
        if (std::find(rules_.begin(), rules_.end(), config.rule) == rules_.end())
            rules_.push_back(config.rule);
        if (task.stored) task.stored->create(config, sizes_.kv_heads);
    }
}

int64_t LayerComparison::chunk_queries() const {
    const int64_t uneven = std::count_if(plan_.configs.begin(), plan_.configs.end(),
                                         [](const Config& config) { return config.uneven; });
    return measure::chunk_queries(task_.backend, sizes_, 8 + uneven,
                                  6 + std::ssize(token_configs_));
}

const Tensor<int32_t, 3>& LayerComparison::oracle(const SelectionRule& rule) const {
    const auto at = std::find(rules_.begin(), rules_.end(), rule);
    return oracles_[static_cast<size_t>(at - rules_.begin())];
}

SelectorLayer LayerComparison::selector_layer(const LayerView& view,
                                              std::span<const SelectionRule> rules) const {
    SelectorLayer layer = view.selector_layer(sizes_, task_.options.seed);
    if (!rules.empty()) layer.rule = rules.front();
    layer.rules = rules;
    layer.prompt = task_.options.prompt;
    layer.counted = task_.counted;
    return layer;
}

std::vector<LayerComparison::Scorer> LayerComparison::make_scorers(const LayerView& view) {
    std::vector<Scorer> scorers;
    for (size_t n = 0; n < plan_.configs.size(); ++n) {
        const Config& config = plan_.configs[n];
        auto same = std::find_if(scorers.begin(), scorers.end(), [&](const Scorer& scorer) {
            return scorer.selector->label() == config.selector;
        });
        if (same == scorers.end()) {
            std::unique_ptr<Selector> made = make_selector(config.selector);
            const bool by_rule = made->needs().uses_rule(task_.options.prompt);
            const bool in_order = made->needs().in_order;
            same = scorers.insert(same, {std::move(made), {}, {}, by_rule, in_order});
        }
        accumulators_[n].about().add_index_cost(*same->selector, phase_, task_.options.prompt);
        same->configs.push_back(n);
        if (std::find(same->rules.begin(), same->rules.end(), config.rule) == same->rules.end())
            same->rules.push_back(config.rule);
    }
    for (const Scorer& scorer : scorers) {
        const Stopwatch watch(task_.timing[scorer.selector->label()].select);
        scorer.selector->prepare(selector_layer(view, scorer.rules));
    }
    for (TokenAccumulator& tokens : token_configs_) {
        const Stopwatch watch(task_.timing[tokens.config().selector].select);
        tokens.about().add_index_cost(tokens.selector(), phase_, task_.options.prompt);
        if (is_first_of_its_name(tokens))
            tokens.selector().prepare(selector_layer(view, {&tokens.config().rule, 1}));
    }
    return scorers;
}

void LayerComparison::run(Progress& progress) {
    const analysis::QueryBlocks& blocks = task_.queries.blocks;
    const int64_t most = chunk_queries();
    for (size_t index = 0; index < static_cast<size_t>(task_.data.views); ++index) {
        const LayerView view(task_.backend, task_.data, index);
        const std::vector<Scorer> scorers = make_scorers(view);
        for (const QueryRange range : measure::chunks(blocks, queries_before(scorers), most)) {
            stop_if_asked();
            pass(view, scorers, range);
        }
        for (const QueryRange range : measure::chunks(blocks, task_.part, most)) {
            stop_if_asked();
            add(view, scorers, range);
            progress.advance(range.end - range.begin);
        }
    }
}

/// Those before the part that some scorer has to see: what it keeps is of one sequence.
QueryRange LayerComparison::queries_before(const std::vector<Scorer>& scorers) const {
    const int64_t end = task_.part.begin;
    if (std::ranges::none_of(scorers, &Scorer::in_order)) return {end, end};
    const std::vector<int64_t> sequence = query_sequences(all_);
    return {
        std::ranges::lower_bound(sequence, sequence[static_cast<size_t>(end)]) - sequence.begin(),
        end};
}

ChunkView LayerComparison::look_at(const LayerView& view, QueryRange range) const {
    const std::span<const int64_t> tokens = task_.queries.tokens_of(range);
    return {selector_layer(view, {}),
            view,
            all_.with_queries(range),
            tokens,
            needs_logits_,
            [this, tokens, &view] {
                return task_.previous->mass(tokens, plan_.block_size, view.index);
            }};
}

void LayerComparison::pass(const LayerView& view, const std::vector<Scorer>& scorers,
                           QueryRange range) {
    const ChunkView queries = look_at(view, range);
    std::vector<Tensor<int32_t, 3>> ids(plan_.configs.size());
    for (const Scorer& scorer : scorers)
        if (scorer.in_order) choose(scorer, view, queries.chunk, ids);
}

void LayerComparison::add(const LayerView& view, const std::vector<Scorer>& scorers,
                          QueryRange range) {
    const ChunkView queries = look_at(view, range);
    const Attention dense = queries.dense();
    const MeasuredChunk measured(queries, task_.queries, range, k_norm_, dense);
    task_.sums.checks.begin(measured.rows(), queries.tokens);
    check_full_budget(measured, range);
    oracles_.clear();
    for (const SelectionRule& rule : rules_)
        oracles_.push_back(
            pick(task_.backend, measured.problem, rule, queries.chunk.mass().floats()));
    const Work work{view, measured, range};
    std::vector<Tensor<int32_t, 3>> ids(plan_.configs.size());
    for (const Scorer& scorer : scorers) choose(scorer, view, queries.chunk, ids);
    add_configs(work, ids);
    add_tokens(work);
}

bool LayerComparison::is_first_of_its_name(const TokenAccumulator& tokens) const {
    const auto first = std::find_if(token_configs_.begin(), token_configs_.end(),
                                    [&](const TokenAccumulator& other) {
                                        return other.config().selector == tokens.config().selector;
                                    });
    return &*first == &tokens;
}

std::vector<KeptTokens> LayerComparison::choose_tokens(const Work& work) {
    std::vector<KeptTokens> kept(token_configs_.size());
    for (TokenAccumulator& tokens : token_configs_) {
        if (!is_first_of_its_name(tokens)) continue;
        const Config& config = tokens.config();
        std::vector<size_t> alike;
        std::vector<int64_t> budgets;
        for (size_t n = 0; n < kept.size(); ++n)
            if (token_configs_[n].config().selector == config.selector) {
                alike.push_back(n);
                budgets.push_back(token_configs_[n].tokens());
            }
        const Stopwatch watch(task_.timing[config.selector].select);
        std::vector<KeptTokens> chosen = tokens.selector().select(
            selector_layer(work.view, {&config.rule, 1}), work.chunk(), budgets);
        for (size_t n = 0; n < alike.size(); ++n) kept[alike[n]] = std::move(chosen[n]);
    }
    return kept;
}

void LayerComparison::add_tokens(const Work& work) {
    if (token_configs_.empty()) return;
    const std::vector<KeptTokens> kept = choose_tokens(work);
    const std::vector<TokenAttention> attention = attend_kept(work, kept);
    for (size_t n = 0; n < kept.size(); ++n) {
        const Stopwatch watch(task_.timing[token_configs_[n].config().selector].evaluate);
        token_configs_[n].add(work.measured, kept[n], attention[n]);
    }
}

std::vector<TokenAttention> LayerComparison::attend_kept(const Work& work,
                                                         const std::vector<KeptTokens>& kept) {
    double seconds = 0;  // all of them together, where they share their work
    std::vector<TokenAttention> attention;
    {
        const Stopwatch watch(seconds);
        const MeasuredChunk& of = work.measured;
        if (task_.backend.space() == Space::host)
            attention = attend_tokens(of.problem,
                                      {of.queries.host_q, work.view.k.host(), task_.data.v,
                                       of.dense.lse, work.view.host_sinks},
                                      kept, task_.backend.host_threads());
        else
            for (const KeptTokens& tokens : kept)
                attention.push_back(attend_tokens_there(task_.backend, of.problem,
                                                        of.queries.input(), of.dense.lse,
                                                        work.view.host_sinks, tokens));
    }
    for (const TokenAccumulator& tokens : token_configs_)
        task_.timing[tokens.config().selector].evaluate +=
            seconds / static_cast<double>(kept.size());
    return attention;
}

void LayerComparison::choose(const Scorer& scorer, const LayerView& view,
                             const SelectorChunk& chunk, std::vector<Tensor<int32_t, 3>>& ids) {
    Backend& backend = task_.backend;
    const Stopwatch watch(task_.timing[scorer.selector->label()].select);
    const bool shared = task_.options.sharing == Sharing::layer;
    // Nobody else wants the scores.
    const bool direct = (scorer.configs.size() == 1 || scorer.by_rule) && !shared;
    SelectorLayer layer = selector_layer(view, scorer.rules);
    Mirror<3> scores;
    if (!direct) {
        scores = scorer.selector->score(layer, chunk);
        if (shared) scores = share_scores(backend, scores.host());
    }
    for (size_t n : scorer.configs) {
        const Config& config = plan_.configs[n];
        const size_t first = *std::ranges::find_if(
            scorer.configs, [&](size_t other) { return plan_.configs[other].rule == config.rule; });
        if (first != n) {  // another budget of as many blocks
            ids[n] = copy_of(ids[first]);
            continue;
        }
        layer.rule = config.rule;
        ids[n] = direct ? fetch(backend, scorer.selector->select(layer, chunk, config.used))
                        : pick(backend, chunk.problem, config.used, scores.floats());
    }
}

void LayerComparison::add_configs(const Work& work, const std::vector<Tensor<int32_t, 3>>& ids) {
    const std::vector<View<const int32_t, 3>> choices(ids.begin(), ids.end());
    double seconds = 0;  // all of them together, where they share their work
    std::vector<Tensor<double, 2>> errors;
    {
        const Stopwatch watch(seconds);
        errors =
            measure::squared_errors(task_.backend, work.measured.problem,
                                    work.measured.queries.input(), work.measured.dense, choices);
    }
    for (size_t n = 0; n < plan_.configs.size(); ++n) {
        const Config& config = plan_.configs[n];
        double& evaluate = task_.timing[config.selector].evaluate;
        evaluate += seconds / static_cast<double>(ids.size());
        const Stopwatch watch(evaluate);
        accumulators_[n].add(work.measured, ids[n], oracle(config.rule), errors[n]);
        task_.sums.checks.check(config.key(), ids[n], errors[n]);
        if (task_.stored) task_.stored->write(config, work.range, ids[n]);
    }
}

void LayerComparison::check_full_budget(const MeasuredChunk& measured, QueryRange range) {
    // The last queries of the layer's first chunk, however the layer is cut.
    const int64_t end =
        measure::chunks(task_.queries.blocks, {0, all_.queries()}, chunk_queries()).front().end;
    const int64_t first = std::max<int64_t>(0, end - kFullRows - range.begin);
    const int64_t rows = std::min(end, range.end) - range.begin - first;
    if (rows > 0) task_.sums.checks.check_all_blocks(measured, first, rows);
}

void LayerComparison::write_about() {
    for (Accumulator& accumulator : accumulators_)
        accumulator.about().write(task_.to, task_.name(), plan_.block_size);
    for (TokenAccumulator& tokens : token_configs_)
        tokens.about().write(task_.to, task_.name(), plan_.block_size);
}

}  // namespace msa::experiments::compare
