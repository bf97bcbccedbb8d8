// SPDX-License-Identifier: MIT
#include "experiments/compare/plan.h"

#include <algorithm>
#include <cmath>

#include "core/select/selector.h"
#include "core/select/token_selector.h"

namespace msa::experiments::compare {
namespace {

constexpr int64_t kBlockSizes[] = {32, 64, 128};  // of tab:block-ablation
constexpr int64_t kForcedLocal = 2;               // of the ablation; the paper does not say
const char* const kWindow = "window-tokens";      // app:prelim-swa

SelectionRule rule_of(const CompareOptions& o, int64_t tokens, int64_t block_size) {
    SelectionRule rule{ceil_div(tokens, block_size), o.forced_local, o.forced_first};
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

/// A config labelled with `setting`, or by what ran where that is empty: "256,first=1,local=2".
Config make_config(const CompareOptions& o, const std::string& selector, const Problem& p,
                   int64_t tokens, const SelectionRule& rule, std::string setting) {
    Config config{selector, std::move(setting), tokens, rule, rule};
    if (find_token_selector(selector) == nullptr) {
        config.used = make_selector(selector)->adjust(rule, o.prompt);
        config.uneven = config.used.top_k == kUneven;
        if (config.uneven)
            config.used.top_k =
                std::max(p.blocks(), config.used.forced_local + config.used.forced_first);
        if (config.setting.empty())
            config.setting = concat(tokens, ",first=", config.used.forced_first,
                                    ",local=", config.used.forced_local);
    }
    if (config.setting.empty()) config.setting = std::to_string(tokens);
    return config;
}

Plan with_block_size(const CompareOptions& o, const std::vector<std::string>& selectors, Problem p,
                     int64_t block_size, const std::string& suffix) {
    p.block_size = block_size;
    Plan plan{.block_size = block_size};
    for (const std::string& selector : selectors)
        for (int64_t tokens : budgets(o, p))
            plan.configs.push_back(make_config(o, selector, p, tokens,
                                               rule_of(o, tokens, block_size),
                                               std::to_string(tokens) + suffix));
    return plan;
}

/// No forced block but the local one, the first block, the newest ones, both
/// (tab:forced-sink-local), where they fit. Policies that force blocks themselves run as often as
/// that makes a difference, and every policy of tokens once.
Plan forced_plan(const CompareOptions& o, const std::vector<std::string>& selectors,
                 const Problem& p) {
    Plan plan{.block_size = o.block_size};
    const auto add = [&](Config config) {
        const auto same = [&](const Config& other) { return other.key() == config.key(); };
        if (std::none_of(plan.configs.begin(), plan.configs.end(), same))
            plan.configs.push_back(std::move(config));
    };
    for (const std::string& selector : selectors)
        for (int64_t tokens : budgets(o, p))
            for (const int64_t first : {int64_t{0}, int64_t{1}})
                for (const int64_t local : {int64_t{1}, kForcedLocal}) {
                    const SelectionRule rule{ceil_div(tokens, o.block_size), local, first};
                    if (first + local > rule.top_k) continue;
                    add(make_config(o, selector, p, tokens, rule, ""));
                }
    return plan;
}

/// Tokens that a query could attend to beyond its budget for the FLOPs of the selector's scores.
int64_t tokens_for_scores(const std::string& selector, const Problem& phase, int64_t prompt) {
    const double flops = make_policy(selector)->cost(phase, prompt).flops;
    const int64_t queries = std::max<int64_t>(1, phase.queries());
    return std::llround(flops /
                        (4 * static_cast<double>(phase.query_heads * phase.head_dim * queries)));
}

/// Every selector, the window of its budget (the paper's comparison, app:prelim-swa), and as a
/// config of its own the window of its FLOPs.
Plan window_plan(const CompareOptions& o, const std::vector<std::string>& selectors,
                 const Problem& p) {
    Plan plan{.block_size = o.block_size};
    const Problem phase = phase_queries(p, o.prompt);
    std::vector<int64_t> matched;
    for (const std::string& selector : selectors) {
        if (selector == kWindow) continue;
        for (int64_t tokens : budgets(o, p)) {
            matched.push_back(
                p.block_size *
                ceil_div(tokens + tokens_for_scores(selector, phase, o.prompt), p.block_size));
            plan.configs.push_back(make_config(
                o, selector, p, tokens, rule_of(o, tokens, p.block_size), std::to_string(tokens)));
            plan.configs.back().matched_budget = matched.back();
        }
    }
    std::sort(matched.begin(), matched.end());
    matched.erase(std::unique(matched.begin(), matched.end()), matched.end());
    const auto add = [&](int64_t tokens, const char* equal) {
        plan.configs.push_back(make_config(o, kWindow, p, tokens, rule_of(o, tokens, p.block_size),
                                           concat(tokens, ",equal=", equal)));
    };
    for (int64_t tokens : budgets(o, p)) add(tokens, "budget");
    for (int64_t tokens : matched)
        if (tokens <= p.batch.longest_keys() / 2) add(tokens, "FLOPs");
    return plan;
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

std::vector<Plan> make_plans(const CompareOptions& o, const std::vector<std::string>& selectors,
                             const Problem& p) {
    std::vector<Plan> plans;
    switch (o.ablation) {
        case Ablation::none: plans = {with_block_size(o, selectors, p, o.block_size, "")}; break;
        case Ablation::forced: plans = {forced_plan(o, selectors, p)}; break;
        case Ablation::window: plans = {window_plan(o, selectors, p)}; break;
        case Ablation::block_size:
            for (int64_t size : kBlockSizes)
                plans.push_back(with_block_size(o, selectors, p, size, concat(",block=", size)));
    }
    int64_t largest = 0;
    for (const Plan& plan : plans)
        for (const Config& config : plan.configs) largest = std::max(largest, config.budget);
    const int64_t forced = o.forced_outside ? o.forced_local + o.forced_first : 0;
    for (Plan& plan : plans) plan.largest_budget = largest + forced * o.block_size;
    return plans;
}

}  // namespace msa::experiments::compare
