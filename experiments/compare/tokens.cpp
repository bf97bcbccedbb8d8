// SPDX-License-Identifier: MIT
#include "experiments/compare/tokens.h"

#include <algorithm>

#include "analysis/output_error.h"
#include "core/select/cost.h"
#include "experiments/compare/sums.h"
#include "experiments/measure/tally.h"

namespace msa::experiments::compare {
namespace {

using measure::MeasuredChunk;
using measure::Stopwatch;
using Seconds = measure::Tally::Seconds;

/// Blocks that ascending tokens touch.
int64_t blocks_touched(const std::vector<int64_t>& tokens, int64_t block_size) {
    int64_t blocks = 0, last = -1;
    for (int64_t j : tokens)
        if (j / block_size != last) {
            last = j / block_size;
            ++blocks;
        }
    return blocks;
}

std::vector<TokenAttention> attend_kept(const MeasuredChunk& of,
                                        const std::vector<KeptTokens>& kept) {
    Backend& backend = of.queries.backend();
    const measure::LayerView& view = of.queries.view();
    if (backend.space() == Space::host)
        return attend_tokens(
            of.problem,
            {of.queries.host_q, view.k.host(), view.data.v, of.dense.lse, view.host_sinks}, kept,
            backend.host_threads());
    std::vector<TokenAttention> attention;
    for (const KeptTokens& tokens : kept)
        attention.push_back(attend_tokens_there(backend, of.problem, of.queries.input(),
                                                of.dense.lse, view.host_sinks, tokens));
    return attention;
}

SelectorLayer with_rule(SelectorLayer layer, const SelectionRule& rule) {
    layer.rule = rule;
    layer.rules = {&rule, 1};
    return layer;
}

}  // namespace

void TokenConfigs::add(const Config& config, int64_t tokens) {
    const auto same = std::ranges::find_if(configs_, [&](const TokenConfig& other) {
        return other.config.selector == config.selector &&
               other.config.block_size == config.block_size;
    });
    configs_.push_back(
        {config, tokens,
         same != configs_.end() ? same->selector : find_token_selector(config.selector)});
}

void TokenConfigs::begin(const SelectorLayer& layer) {
    const TokenSelector* last = nullptr;
    for (const TokenConfig& of : configs_) {
        if (of.config.block_size != layer.problem.block_size || of.selector.get() == last) continue;
        last = of.selector.get();
        const Stopwatch watch(seconds(of, &Seconds::select));
        of.selector->prepare(with_rule(layer, of.config.rule));
    }
}

std::vector<KeptTokens> TokenConfigs::choose(const MeasuredChunk& chunk,
                                             const std::vector<TokenConfig*>& of) {
    std::vector<KeptTokens> kept(of.size());
    for (size_t first = 0; first < of.size(); ++first) {
        if (!kept[first].empty()) continue;
        std::vector<size_t> alike;
        std::vector<int64_t> budgets;
        for (size_t n = first; n < of.size(); ++n)
            if (of[n]->selector == of[first]->selector) {
                alike.push_back(n);
                budgets.push_back(of[n]->tokens);
            }
        const Stopwatch watch(seconds(*of[first], &Seconds::select));
        std::vector<KeptTokens> chosen = of[first]->selector->select(
            with_rule(chunk.layer, of[first]->config.rule), chunk.queries.chunk, budgets);
        for (size_t n = 0; n < alike.size(); ++n) kept[alike[n]] = std::move(chosen[n]);
    }
    return kept;
}

void TokenConfigs::measure(const MeasuredChunk& chunk) {
    std::vector<TokenConfig*> here;
    for (TokenConfig& of : configs_)
        if (of.config.block_size == chunk.problem.block_size) here.push_back(&of);
    if (here.empty()) return;
    const std::vector<KeptTokens> kept = choose(chunk, here);
    double together = 0;  // seconds of all of them, where they share their work
    std::vector<TokenAttention> attention;
    {
        const Stopwatch watch(together);
        attention = attend_kept(chunk, kept);
    }
    for (size_t n = 0; n < here.size(); ++n) {
        double& evaluate = seconds(*here[n], &Seconds::evaluate);
        evaluate += together / static_cast<double>(here.size());
        const Stopwatch watch(evaluate);
        add(chunk, *here[n], kept[n], attention[n]);
    }
}

void TokenConfigs::add(const MeasuredChunk& chunk, const TokenConfig& of, const KeptTokens& kept,
                       const TokenAttention& attention) {
    const std::string key = of.config.key;
    const Tensor<double, 2>& mass = attention.mass;
    const Tensor<double, 2> differences = analysis::squared_differences(
        attention.out, host_view(chunk.dense.out), chunk.problem.kv_heads);
    for (int64_t i = 0; i < mass.extent(0); ++i)
        for (int64_t r = 0; r < mass.extent(1); ++r)
            tally_.checks.check_mass(
                key, i, r, blocks_touched(kept[static_cast<size_t>(i)], chunk.problem.block_size),
                mass(i, r));
    tally_.sums.add(chunk.blocks, [&](const measure::BlockRows& rows) {
        const Problem& p = rows.problem;
        const std::span<const analysis::RowKind> kinds = rows.of(chunk.kinds);
        analysis::OutputError error(p.kv_heads);
        error.add(kinds, rows.of(differences), rows.of(chunk.norm));
        measure::KeptMass kept_mass(p.kv_heads);
        Reading reading(p.kv_heads);
        for (int64_t i = 0; i < p.queries(); ++i) {
            const std::vector<int64_t>& tokens = kept[static_cast<size_t>(rows.rows.begin + i)];
            const auto products = static_cast<double>(std::ssize(tokens) * p.head_dim);
            reading.add_query({4 * static_cast<double>(p.query_heads) * products,
                               2 * kCostElementBytes * static_cast<double>(p.kv_heads) * products});
            if (kinds[static_cast<size_t>(i)] != analysis::RowKind::counted) continue;
            reading.count_row();
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                reading.add_counted(r, blocks_touched(tokens, p.block_size), std::ssize(tokens));
                kept_mass.means[static_cast<size_t>(r)].add(mass(rows.rows.begin + i, r));
            }
        }
        return measure::States{{key + "/reading", reading.state()},
                               {key + "/group_output_error", error.state()},
                               {key + "/mass", kept_mass.state()}};
    });
}

}  // namespace msa::experiments::compare
