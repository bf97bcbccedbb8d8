// SPDX-License-Identifier: MIT
// The configs that msa-compare measures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/problem.h"
#include "core/selection.h"
#include "experiments/compare/options.h"
#include "experiments/measure/measure.h"

namespace msa::experiments::compare {

/// One policy at one setting: of blocks a choice, of tokens what stands in its place. The key is
/// "quest@1024,block=32": `used` has no more slots than there are blocks.
struct Config : measure::Choice {
    std::string setting = {};    // "1024,block=32": the budget, and what an ablation varies
    int64_t budget = 0;          // tokens
    bool of_tokens = false;      // it keeps single tokens
    bool uneven = false;         // it spends the budget unevenly
    int64_t matched_budget = 0;  // window ablation: tokens of the window with the same FLOPs; it
                                 // is a config if it is at most half the context
};

struct Plan {
    std::vector<Config> configs = {};
    /// In tokens, including forced blocks outside it. Means count only rows that see more keys; on
    /// the others it is dense attention.
    int64_t largest_budget = 0;
};

/// The queries of the phase, on which costs are counted: all tokens, or those after the prompt.
/// `whole`: all tokens as queries.
Problem phase_queries(const Problem& whole, int64_t prompt);

/// Visible tokens in k blocks, the own block among them, on average over the queries that see more
/// than `beyond` keys. Rounded down.
int64_t mean_tokens(const Problem& queries, int64_t top_k, int64_t beyond);

/// The plan of a layer; `whole` has all tokens as queries. A window of equal FLOPs larger than half
/// the longest sequence is left out, since too few rows would see more keys. InputError if the
/// forced blocks do not fit into a budget.
Plan make_plan(const CompareOptions&, const std::vector<std::string>& selectors,
               const Problem& whole, const LearnedSizes&);

}  // namespace msa::experiments::compare
