// SPDX-License-Identifier: MIT
#include "experiments/compare/plan.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/select/selector.h"
#include "core/select/token_selector.h"

namespace msa::experiments::compare {
namespace {

constexpr int64_t kBlockSizes[] = {32, 64, 128};  // of tab:block-ablation
constexpr int64_t kForcedLocal = 2;               // of the ablation; the paper does not say
const char* const kWindow = "window-tokens";      // app:prelim-swa

SelectionRule rule_of(const CompareOptions& o, int64_t tokens, int64_t block_size, int64_t first) {
    SelectionRule rule{ceil_div(tokens, block_size), o.forced_local, first};
    if (o.forced_outside) rule.top_k += rule.forced_local + rule.forced_first;
    rule.validate();
    return rule;
}

std::vector<int64_t> budgets(const CompareOptions& o, const Problem& p) {
    std::vector<int64_t> tokens;
    for (const Budget& budget : o.budgets) tokens.push_back(budget.tokens(p.batch.longest_keys()));
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    return tokens;
}

/// A config of blocks as large as those of `p`, labelled with `setting`, or by what ran where that
/// is empty: "256,first=1,local=2".
Config make_config(const CompareOptions& o, const std::string& selector, const Problem& p,
                   int64_t tokens, const SelectionRule& rule, std::string setting) {
    Config config;
    config.selector = selector;
    config.block_size = p.block_size;
    config.rule = config.used = rule;
    config.budget = tokens;
    config.of_tokens = find_token_selector(selector) != nullptr;
    if (!config.of_tokens) {
        SelectionRule& used = config.used = make_selector(selector)->adjust(rule, o.prompt);
        config.uneven = used.top_k == kUneven;
        if (config.uneven) used.top_k = std::max(p.blocks(), used.forced_local + used.forced_first);
        if (setting.empty())
            setting = concat(tokens, ",first=", used.forced_first, ",local=", used.forced_local);
    }
    config.setting = setting.empty() ? std::to_string(tokens) : std::move(setting);
    config.key = selector + "@" + config.setting;
    return config;
}

using Configs = std::vector<Config>;

/// Of several --forced-first a config is named by what it keeps: "256,first=1". A policy that
/// forces blocks itself runs as often as that makes a difference, and a policy of tokens once.
void add_plain(const CompareOptions& o, const std::vector<std::string>& selectors, Problem p,
               int64_t block_size, const std::string& suffix, Configs& to) {
    p.block_size = block_size;
    for (const std::string& selector : selectors)
        for (int64_t tokens : budgets(o, p))
            for (int64_t first : o.forced_first) {
                Config config =
                    make_config(o, selector, p, tokens, rule_of(o, tokens, block_size, first),
                                std::to_string(tokens) + suffix);
                if (o.forced_first.size() > 1 && !config.of_tokens &&
                    config.used.forced_first > 0) {
                    const std::string forced = concat(",first=", config.used.forced_first);
                    config.setting += forced;
                    config.key += forced;
                }
                if (std::ranges::find(to, config.key, &Config::key) == to.end())
                    to.push_back(std::move(config));
            }
}

/// No forced block but the local one, the first block, the newest ones, both
/// (tab:forced-sink-local), where they fit. Policies that force blocks themselves run as often as
/// that makes a difference, and every policy of tokens once.
void add_forced(const CompareOptions& o, const std::vector<std::string>& selectors,
                const Problem& p, Configs& to) {
    for (const std::string& selector : selectors)
        for (int64_t tokens : budgets(o, p))
            for (const int64_t first : {int64_t{0}, int64_t{1}})
                for (const int64_t local : {int64_t{1}, kForcedLocal}) {
                    const SelectionRule rule{ceil_div(tokens, o.block_size), local, first};
                    if (first + local > rule.top_k) continue;
                    Config config = make_config(o, selector, p, tokens, rule, "");
                    if (std::ranges::find(to, config.key, &Config::key) == to.end())
                        to.push_back(std::move(config));
                }
}

/// Tokens that a query could attend to beyond its budget for the FLOPs of the selector's scores.
int64_t tokens_for_scores(const std::string& selector, const Phase& phase) {
    const double flops = make_policy(selector)->cost(phase).flops;
    const Problem& p = phase.problem;
    const int64_t queries = std::max<int64_t>(1, p.queries());
    return std::llround(flops / (4 * static_cast<double>(p.query_heads * p.head_dim * queries)));
}

/// Every selector, the window of its budget (the paper's comparison, app:prelim-swa), and as a
/// config of its own the window of its FLOPs.
void add_windows(const CompareOptions& o, const std::vector<std::string>& selectors,
                 const Problem& p, const LearnedSizes& learned, Configs& to) {
    const Problem queries = phase_queries(p, o.prompt);
    const Phase phase{queries, o.prompt, learned};
    std::set<int64_t> matched;
    const auto add = [&](const std::string& selector, int64_t tokens, const std::string& equal) {
        to.push_back(make_config(o, selector, p, tokens,
                                 rule_of(o, tokens, p.block_size, o.forced_first.front()),
                                 std::to_string(tokens) + equal));
    };
    for (const std::string& selector : selectors) {
        if (selector == kWindow) continue;
        for (int64_t tokens : budgets(o, p)) {
            add(selector, tokens, "");
            to.back().matched_budget =
                p.block_size * ceil_div(tokens + tokens_for_scores(selector, phase), p.block_size);
            matched.insert(to.back().matched_budget);
        }
    }
    for (int64_t tokens : budgets(o, p)) add(kWindow, tokens, ",equal=budget");
    for (int64_t tokens : matched)
        if (tokens <= p.batch.longest_keys() / 2) add(kWindow, tokens, ",equal=FLOPs");
}

}  // namespace

Problem phase_queries(const Problem& whole, int64_t prompt) {
    if (prompt == 0) return whole;
    std::vector<int64_t> tokens;
    for (size_t s = 0; s + 1 < whole.batch.cu_seqlens_k().size(); ++s)
        for (int64_t token = whole.batch.cu_seqlens_k()[s] + prompt;
             token < whole.batch.cu_seqlens_k()[s + 1]; ++token)
            tokens.push_back(token);
    return whole.with_query_rows(tokens);
}

int64_t mean_tokens(const Problem& queries, int64_t top_k, int64_t beyond) {
    int64_t tokens = 0, rows = 0;
    for (const KeyRange& seen : visible_keys(queries)) {
        if (seen.count <= beyond) continue;
        tokens += readable_tokens(top_k, queries.block_size, seen.count);
        ++rows;
    }
    return rows > 0 ? std::max<int64_t>(1, tokens / rows) : top_k * queries.block_size;
}

Plan make_plan(const CompareOptions& o, const std::vector<std::string>& selectors, const Problem& p,
               const LearnedSizes& learned) {
    Plan plan;
    switch (o.ablation) {
        case Ablation::none: add_plain(o, selectors, p, o.block_size, "", plan.configs); break;
        case Ablation::forced: add_forced(o, selectors, p, plan.configs); break;
        case Ablation::window: add_windows(o, selectors, p, learned, plan.configs); break;
        case Ablation::block_size:
            for (int64_t size : kBlockSizes)
                add_plain(o, selectors, p, size, concat(",block=", size), plan.configs);
    }
    const int64_t forced = o.forced_outside ? o.forced_local + o.forced_first.back() : 0;
    for (const Config& config : plan.configs)
        plan.largest_budget = std::max(plan.largest_budget, config.budget + forced * o.block_size);
    return plan;
}

}  // namespace msa::experiments::compare
