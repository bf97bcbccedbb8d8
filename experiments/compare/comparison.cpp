// SPDX-License-Identifier: MIT
#include "experiments/compare/comparison.h"

#include <algorithm>
#include <cmath>

#include "core/tolerance.h"
#include "experiments/compare/stopwatch.h"
#include "experiments/driver/block_intervals.h"
#include "experiments/driver/choice_errors.h"
#include "experiments/driver/program.h"

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
      all_(sizes_.with_query_rows(task.tokens)),
      phase_(phase_queries(sizes_, task.options.prompt)),
      k_norm_(largest_norm<3>(task.data.k)) {
    std::erase_if(plan_.configs, [&](const Config& config) {
        const bool of_tokens = find_token_selector(config.selector) != nullptr;
        if (of_tokens)
            token_configs_.emplace_back(
                config, mean_tokens(phase_, config.rule.top_k, plan_.largest_budget),
                task.sums.keeping_tokens(config.key()));
        return of_tokens;
    });
    for (const Config& config : plan_.configs) {
        accumulators_.emplace_back(config, task.sums.keeping_blocks(config.key(), sizes_.blocks()));
        needs_logits_ |= make_selector(config.selector)->needs().max_logit;
        if (std::find(rules_.begin(), rules_.end(), config.rule) == rules_.end())
            rules_.push_back(config.rule);
        if (task.stored) task.stored->create(config, sizes_.kv_heads);
    }
}

int64_t LayerComparison::chunk_queries() const {
    const int64_t uneven = std::count_if(plan_.configs.begin(), plan_.configs.end(),
                                         [](const Config& config) { return config.uneven; });
    const int64_t per_block = 4 * sizes_.kv_heads * sizes_.blocks() * (8 + uneven);
    const int64_t per_head =
        4 * sizes_.query_heads * sizes_.head_dim * (6 + std::ssize(token_configs_));
    return std::clamp<int64_t>(kChunkBytes / (per_block + per_head), 1, 2048);
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
    layer.counted = task_.counted.tokens;
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
    for (size_t index = 0; index < static_cast<size_t>(task_.data.views); ++index) {
        const LayerView view(task_.backend, task_.data, index);
        const std::vector<Scorer> scorers = make_scorers(view);
        for (const QueryRange range : chunks(queries_before(scorers))) {
            stop_if_asked();
            pass(view, scorers, range);
        }
        for (const QueryRange range : chunks(task_.part)) {
            stop_if_asked();
            add(view, scorers, range);
            progress.advance(range.end - range.begin);
        }
    }
}

std::vector<QueryRange> LayerComparison::chunks(QueryRange of) const {
    std::vector<QueryRange> all;
    const int64_t step = chunk_queries();
    for (int64_t begin = of.begin; begin < of.end; begin += step)
        all.push_back({begin, std::min(begin + step, of.end)});
    return all;
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
    const auto tokens = std::span(task_.tokens)
                            .subspan(static_cast<size_t>(range.begin),
                                     static_cast<size_t>(range.end - range.begin));
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

double LayerComparison::mass_bound(const Problem& p, View<const float, 3> q,
                                   View<const float, 2> lse) const {
    const auto keys = static_cast<double>(sizes_.batch.longest_keys());
    const double logit = main_logit_bound(p, largest_norm<3>(q), k_norm_);
    double magnitude = 0;
    for (int64_t at = 0; at < lse.size(); ++at)
        if (std::isfinite(lse.data()[at]))
            magnitude = std::max(magnitude, std::abs(double{lse.data()[at]}));
    return token_mass_bound(logit, keys, magnitude);
}

void LayerComparison::add(const LayerView& view, const std::vector<Scorer>& scorers,
                          QueryRange range) {
    const ChunkView queries = look_at(view, range);
    const Problem& p = queries.problem;
    const SelectorChunk& chunk = queries.chunk;
    Backend& backend = task_.backend;
    const Attention dense = attend(backend, p, queries.input(), {});
    const std::vector<analysis::RowKind> kinds = analysis::rows_beyond(p, plan_.largest_budget);
    const auto blocks = std::span(task_.counted.blocks.of_query)
                            .subspan(static_cast<size_t>(range.begin), kinds.size());
    const Tensor<double, 2> norm = analysis::squared_differences(dense.out, {}, p.kv_heads);
    const MeasuredChunk measured{p,
                                 kinds,
                                 blocks,
                                 chunk.mass().host(),
                                 {},
                                 host_view(dense.out),
                                 norm,
                                 std::as_const(dense.lse).view(),
                                 mass_bound(p, queries.host_q, dense.lse)};
    task_.sums.checks.begin(measured);
    task_.sums.checks.look_for_undefined(measured, queries.tokens);
    check_full_budget(view, chunk, measured, range);
    oracles_.clear();
    for (const SelectionRule& rule : rules_)
        oracles_.push_back(pick(backend, p, rule, chunk.mass().floats()));
    const Work work{view, chunk, dense, measured, range};
    std::vector<Tensor<int32_t, 3>> ids(plan_.configs.size());
    for (const Scorer& scorer : scorers) choose(scorer, view, chunk, ids);
    add_configs(work, ids);
    add_tokens(work);
}

AttentionInput LayerComparison::operands(const Work& work) {
    return {work.chunk.q.operand(), work.view.k_there, work.view.v_there, work.view.sinks};
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
            selector_layer(work.view, {&config.rule, 1}), work.chunk, budgets);
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
        token_configs_[n].add(work.measured, kept[n], attention[n], task_.sums.checks);
    }
}

std::vector<TokenAttention> LayerComparison::attend_kept(const Work& work,
                                                         const std::vector<KeptTokens>& kept) {
    double seconds = 0;  // all of them together, where they share their work
    std::vector<TokenAttention> attention;
    {
        const Stopwatch watch(seconds);
        const SelectorChunk& chunk = work.chunk;
        if (task_.backend.space() == Space::host)
            attention = attend_tokens(chunk.problem,
                                      {chunk.q.host(), work.view.k.host(), task_.data.v,
                                       work.measured.lse, work.view.host_sinks},
                                      kept, task_.backend.host_threads());
        else
            for (const KeptTokens& tokens : kept)
                attention.push_back(attend_tokens_there(task_.backend, chunk.problem,
                                                        operands(work), work.measured.lse,
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

void LayerComparison::add_configs(Work work, const std::vector<Tensor<int32_t, 3>>& ids) {
    const std::vector<View<const int32_t, 3>> choices(ids.begin(), ids.end());
    double seconds = 0;  // all of them together, where they share their work
    std::vector<Tensor<double, 2>> errors;
    {
        const Stopwatch watch(seconds);
        errors =
            squared_errors(task_.backend, work.chunk.problem, operands(work), work.dense, choices);
    }
    for (size_t n = 0; n < plan_.configs.size(); ++n) {
        const Config& config = plan_.configs[n];
        double& evaluate = task_.timing[config.selector].evaluate;
        evaluate += seconds / static_cast<double>(ids.size());
        const Stopwatch watch(evaluate);
        work.measured.oracle_ids = oracle(config.rule).view();
        accumulators_[n].add(work.measured, ids[n], errors[n]);
        task_.sums.checks.check(config.key(), work.measured, ids[n], errors[n]);
        if (task_.stored) task_.stored->write(config, work.range, ids[n]);
    }
}

void LayerComparison::check_full_budget(const LayerView& view, const SelectorChunk& chunk,
                                        const MeasuredChunk& measured, QueryRange range) {
    // The last queries of the layer's first chunk, however the layer is cut.
    const int64_t end = std::min(chunk_queries(), all_.queries());
    const int64_t first = std::max<int64_t>(0, end - kFullRows - range.begin);
    const int64_t rows = std::min(end, range.end) - range.begin - first;
    if (rows <= 0) return;
    const Problem p = measured.problem.with_queries({first, first + rows});
    const Tensor<int32_t, 3> ids = all_visible_blocks(p);
    const Operand<3> last(task_.backend, chunk.q.host().slice(first, rows),
                          task_.data.elements.main.computed);
    const Tensor<float, 3> sparse =
        attend_selected(task_.backend, p, {last, view.k_there, view.v_there, view.sinks}, ids).out;
    MeasuredChunk part{p,
                       measured.kinds,
                       measured.blocks,
                       measured.mass.slice(first, rows),
                       {},
                       measured.dense.slice(first, rows),
                       measured.norm.slice(first, rows),
                       measured.lse.slice(first, rows),
                       measured.mass_bound};
    task_.sums.checks.begin(part);
    task_.sums.checks.check("the full budget", part, ids,
                            analysis::squared_differences(sparse, part.dense, p.kv_heads));
    task_.sums.checks.begin(measured);
}

void LayerComparison::write_about() {
    for (Accumulator& accumulator : accumulators_)
        accumulator.about().write(task_.to, task_.name(), plan_.block_size);
    for (TokenAccumulator& tokens : token_configs_)
        tokens.about().write(task_.to, task_.name(), plan_.block_size);
}

}  // namespace msa::experiments::compare
