// SPDX-License-Identifier: MIT
#include "experiments/compare/options.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/select/token_selector.h"
#include "experiments/driver/full_layers.h"
#include "experiments/programs.h"
#include "experiments/report/text.h"

namespace msa::experiments::compare {
namespace {

const About kAbout{
    .program = kProgram,
    .usage = "FILE... --out DIR [options]",
    .examples = {"msa-compare data/sample.h5 --out results/compare --budgets 256,512 --block-size "
                 "64 --sample-queries 256",
                 "msa-compare data/sample.h5 --out results/blocks --ablation block-size "
                 "--selectors oracle,mean-key --budgets 512 --sample-queries 256"},
    .writes =
        "DIR/results.h5 (groups /layers, /metrics, /overlap, /distance, /select, /queries, "
        "/checks;\n"
        "see data/FORMAT.md), DIR/summary.json (tables, see there),\n"
        "DIR/tables/NAME.csv, DIR/metrics.csv, DIR/compare.txt (what is printed) and\n"
        "DIR/timing.json.\n"
        "Every run checks itself: no selector may keep more mass than the best choice of equally "
        "many\n"
        "blocks, and a budget that covers everything must equal dense attention.",
};

const std::vector<std::string> kSharings{"head", "group", "layer"};
const std::vector<std::string> kAblations{"none", "block-size", "forced", "window"};
const std::string kBudgets = "256,512,1024,2048";

}  // namespace

Budget parse_budget(const std::string& item) {
    Budget budget{item, 0, item.find('.') != std::string::npos};
    if (!budget.is_share) {
        budget.value = static_cast<double>(integer_list("budgets", item).front());
        require(budget.value >= 1, "--budgets has ", item, ", must be at least 1 token");
        return budget;
    }
    const auto share = number_of<double>(item);
    require(share && *share > 0 && *share <= 1, "--budgets has '", item,
            "', a share of the context must be above 0.0 and at most 1.0");
    budget.value = *share;
    return budget;
}

int64_t Budget::tokens(int64_t context) const {
    const double wanted = is_share ? value * static_cast<double>(context) : value;
    return std::llround(std::min(wanted, static_cast<double>(context)));
}

const char* to_string(Sharing sharing) { return kSharings[static_cast<size_t>(sharing)].c_str(); }

const char* to_string(Ablation ablation) {
    return kAblations[static_cast<size_t>(ablation)].c_str();
}

OptionTable option_table(CompareOptions& o) {
    OptionTable table(kAbout);
    add_files(table, o);
    table.numbers("layers", "L,...", o.layers, kFullLayersHelp);
    add_selectors(table, o.selectors, list_policies());
    table
        .names(
            "budgets", "TOKENS,...", o.asked,
            [](const std::string& item) { return parse_budget(item).asked; },
            "tokens that a query attends to, rounded up to whole blocks; with a decimal point "
            "(0.1), a share of the longest sequence")
        .shown_as(kBudgets);
    table.choice("ablation", "WHAT", o.ablation, kAblations,
                 "a table of the paper's appendix: block-size (32, 64, 128 at equal budget), "
                 "forced (first and newest blocks), window (against window-tokens of equal budget, "
                 "and of equal FLOPs); none: the plain comparison");
    table.count("block-size", "TOKENS", o.block_size, "Bk, tokens of a key block",
                between(kMinBlockSize, kMaxBlockSize));
    table.count("forced-local", "BLOCKS", o.forced_local,
                "newest blocks always kept, the query's own among them", block_count(1));
    add_forced_first(table, o.forced_first);
    table.choice("forced", "WHERE", o.forced_outside, {"inside", "outside"},
                 "whether forced blocks count inside the budget or come on top of it (outside)");
    table.choice("share", "UNIT", o.sharing, kSharings,
                 "query heads that share a choice of blocks: head, group, layer");
    table.choice("phase", "PHASE", o.decode, {"prefill", "decode"},
                 "prefill, or decode: the tokens after the prompt come one by one");
    table
        .count("prompt", "TOKENS", o.prompt, "tokens of each sequence's prompt in the decode phase")
        .shown_as("");
    add_queries(table, o);
    table.seed(o.seed, "seed of sampling and of random selectors");
    add_compute(table, o);
    add_index_element(table, o);
    add_unit_queries(table, o);
    add_existing(table, o);
    return table;
}

std::optional<CompareOptions> parse_compare_options(std::span<const std::string> args,
                                                    std::ostream& out) {
    CompareOptions o;
    if (!option_table(o).parse(args, out)) return std::nullopt;
    if (o.asked.empty()) o.asked = split_list("budgets", kBudgets);
    for (const std::string& item : o.asked) o.budgets.push_back(parse_budget(item));
    sort_sizes(o.forced_first);
    require(o.forced_first.size() == 1 ||
                (o.ablation != Ablation::window && o.ablation != Ablation::forced),
            "--forced-first is ", join(o.forced_first), ", must be one number with --ablation ",
            to_string(o.ablation));
    require(o.decode == (o.prompt > 0),
            "--phase decode needs --prompt, at least 1 token, and --prompt needs --phase decode");
    return o;
}

}  // namespace msa::experiments::compare
