// SPDX-License-Identifier: MIT
#include "experiments/compare/plan.h"

#include <algorithm>
#include <cmath>

#include "analysis/cost_model.h"
#include "analysis/selector_cost.h"

namespace msa::experiments::compare {
namespace {

constexpr int64_t kBlockSizes[] = {32, 64, 128};  // of tab:block-ablation
constexpr int64_t kForcedLocal = 2;               // of the ablation; the paper does not say
const char* const kWindow = "window";

int64_t context(const Problem& p) {
    int64_t longest = 0;
    for (size_t s = 0; s + 1 < p.batch.cu_seqlens_k().size(); ++s)
        longest = std::max(longest, p.batch.cu_seqlens_k()[s + 1] - p.batch.cu_seqlens_k()[s]);
    return longest;
}

SelectionRule rule_of(const CompareOptions& o, int64_t tokens, int64_t block_size) {
    SelectionRule rule{ceil_div(tokens, block_size), o.forced_local, o.forced_first};
    if (o.forced_outside) rule.top_k += rule.forced_local + rule.forced_first;
    rule.validate();
    return rule;
}

std::vector<int64_t> budgets(const CompareOptions& o, const Problem& p) {
    std::vector<int64_t> tokens;
    for (const Budget& budget : o.budgets) tokens.push_back(budget.tokens(context(p)));
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    return tokens;
}

Plan with_block_size(const CompareOptions& o, const std::vector<std::string>& selectors,
                     const Problem& p, int64_t block_size, const std::string& suffix) {
    Plan plan{block_size, {}};
    for (const std::string& selector : selectors)
        for (int64_t tokens : budgets(o, p))
            plan.arms.push_back({selector, std::to_string(tokens) + suffix, tokens,
                                 rule_of(o, tokens, block_size)});
    return plan;
}

/// No forced block but the local one, the first block, the newest ones, both
/// (tab:forced-sink-local), where they fit.
Plan forced_plan(const CompareOptions& o, const std::vector<std::string>& selectors,
                 const Problem& p) {
    Plan plan{o.block_size, {}};
    for (const std::string& selector : selectors)
        for (int64_t tokens : budgets(o, p))
            for (const int64_t first : {int64_t{0}, int64_t{1}})
                for (const int64_t local : {int64_t{1}, kForcedLocal}) {
                    const SelectionRule rule{ceil_div(tokens, o.block_size), local, first};
                    if (first + local > rule.top_k) continue;
                    plan.arms.push_back(
                        {selector, text(tokens, ",first=", first, ",local=", local), tokens, rule});
                }
    return plan;
}

/// Tokens that a query could attend to beyond its budget for the FLOPs of the selector's scores.
int64_t tokens_for_scores(const std::string& selector, const Problem& p, int64_t prompt) {
    const double flops = analysis::selector_cost(selector, p, prompt).flops;
    return std::llround(flops /
                        (4 * static_cast<double>(p.query_heads * p.head_dim * p.queries())));
}

/// Every selector beside windows of its budget and of its FLOPs (app:prelim-swa).
Plan window_plan(const CompareOptions& o, const std::vector<std::string>& selectors,
                 const Problem& p) {
    Plan plan{o.block_size, {}};
    std::vector<int64_t> windows = budgets(o, p);
    for (const std::string& selector : selectors) {
        if (selector == kWindow) continue;
        for (int64_t tokens : budgets(o, p)) {
            const int64_t matched =
                p.block_size *
                ceil_div(tokens + tokens_for_scores(selector, p, o.prompt), p.block_size);
            windows.push_back(matched);
            plan.arms.push_back({selector, std::to_string(tokens), tokens,
                                 rule_of(o, tokens, p.block_size), matched});
        }
    }
    std::sort(windows.begin(), windows.end());
    windows.erase(std::unique(windows.begin(), windows.end()), windows.end());
    for (int64_t tokens : windows)
        plan.arms.push_back(
            {kWindow, std::to_string(tokens), tokens, rule_of(o, tokens, p.block_size)});
    return plan;
}

}  // namespace

std::vector<Plan> make_plans(const CompareOptions& o, const std::vector<std::string>& selectors,
                             const Problem& p) {
    switch (o.ablation) {
        case Ablation::none: return {with_block_size(o, selectors, p, o.block_size, "")};
        case Ablation::forced: return {forced_plan(o, selectors, p)};
        case Ablation::window: return {window_plan(o, selectors, p)};
        case Ablation::block_size: break;
    }
    std::vector<Plan> plans;
    for (int64_t block_size : kBlockSizes)
        plans.push_back(with_block_size(o, selectors, p, block_size, text(",block=", block_size)));
    return plans;
}

int64_t largest_budget(const CompareOptions& o, const Problem& p) {
    const int64_t forced = o.forced_outside ? o.forced_local + o.forced_first : 0;
    return budgets(o, p).back() + forced * o.block_size;
}

}  // namespace msa::experiments::compare
