// SPDX-License-Identifier: MIT
#include "experiments/advise/options.h"

#include <algorithm>

#include "core/select/selector.h"
#include "core/select/token_selector.h"
#include "experiments/programs.h"
#include "experiments/report/text.h"

namespace msa::experiments::advise {
namespace {

const About kAbout{
    .program = kProgram,
    .usage = "FILE... --out DIR [--keep SHARE | --error E | --budgets TOKENS] [options]",
    .examples = {"msa-advise data/sample.h5 --out results/advise --keep 0.9 --sample-queries 256",
                 "msa-advise data/sample.h5 --out results/advise-512 --budgets 512 --context 32K "
                 "--hardware h200 --selectors mean-key,quest --sample-queries 256"},
    .writes =
        "DIR/results.h5 (groups /layers, /queries, /advise; see data/FORMAT.md), DIR/summary.json\n"
        "(tables, see there), DIR/tables/NAME.csv and DIR/advice.txt (what is printed). If no\n"
        "setting reaches the target, the nearest one is named, and the exit code is 2.\n\n"
        "Mass kept does not measure the model's loss. Much mass may be lost without harm if values "
        "cancel\n"
        "or are small, or if heads write little; then --keep leaves layers dense that could be "
        "sparse. A\n"
        "little lost mass may contain the one token that matters. --error weights keys by their "
        "effect on\n"
        "the output of the layer's attention. `msalab evaluate` measures the model's loss.",
};

constexpr double kDefaultKeep = 0.95;

}  // namespace

OptionTable option_table(AdviseOptions& o) {
    OptionTable table(kAbout);
    add_files(table, o);
    table.real("keep", "SHARE", o.keep,
               "target: this share of the attention mass is kept; default, with 0.95",
               proper_share());
    table.real("error", "E", o.error,
               "target: the relative output error of a group of heads is at most this", positive());
    table
        .count("budgets", "TOKENS", o.budget,
               "target: the most mass with at most this many tokens attended to by a query",
               at_least(1))
        .as("budget");
    add_pricing(table, o, "; mass and error are those of FILE");
    table.numbers(
        "layers", "L,...", o.layers,
        "layers, of which those with a sliding window keep it at its own cost; default: all");
    table
        .names(
            "selectors", "NAME,...", o.selectors,
            [](const std::string& name) { return pointwise_selector("selectors", name); },
            "some of: " + join(list_pointwise_selectors()) +
                "; default: index if the file has one, oracle, mean-key, window, quest" +
                options_help(list_pointwise_selectors()))
        .offers(list_pointwise_selectors());
    table
        .counts("block-size", "TOKENS,...", o.block_sizes, "Bk, tokens of a key block",
                between(kMinBlockSize, kMaxBlockSize))
        .as("block_sizes");
    table
        .counts("top-k", "BLOCKS,...", o.top_ks,
                "k, blocks kept per query and group, forced ones included", at_least(1))
        .as("top_ks");
    add_forced_first(table, o.forced_first);
    table.counts("forced-local", "BLOCKS,...", o.forced_local,
                 "newest blocks always kept, the query's own among them", block_count(1));
    add_queries(table, o);
    table.seed(o.seed, "seed of sampling, the bootstrap and the selector random");
    add_compute(table, o);
    add_index_element(table, o);
    add_existing(table, o);
    return table;
}

std::optional<AdviseOptions> parse_advise_options(std::span<const std::string> args,
                                                  std::ostream& out) {
    AdviseOptions o;
    if (!option_table(o).parse(args, out)) return std::nullopt;
    o.check_target(&TargetOptions::keep, kDefaultKeep);
    for (std::vector<int64_t>* sizes :
         {&o.block_sizes, &o.top_ks, &o.forced_first, &o.forced_local})
        sort_sizes(*sizes);
    return o;
}

bool is_bound(const Setting& setting) {
    return make_selector(setting.selector)->family() == Family::oracle;
}

std::string setting_text(const Setting& s) {
    return concat(s.selector, ", Bk ", s.block_size, ", k ", s.rule.top_k, ", forced first ",
                  s.rule.forced_first, ", newest ", s.rule.forced_local);
}

int64_t Grid::largest() const {
    int64_t most = 0;
    for (const Setting& setting : settings) most = std::max(most, setting.tokens());
    return most;
}

Grid make_grid(const AdviseOptions& o, const std::vector<std::string>& selectors, int64_t most,
               const std::string& why_most) {
    Grid grid;
    const auto add = [&](const std::string& selector, int64_t block_size,
                         const SelectionRule& asked) {
        if (asked.forced_first + asked.forced_local > asked.top_k) return;
        const Setting setting{selector, block_size, make_selector(selector)->adjust(asked, 0)};
        if (std::find(grid.settings.begin(), grid.settings.end(), setting) != grid.settings.end())
            return;
        if (setting.tokens() > most)
            ++grid.too_large;
        else
            grid.settings.push_back(setting);
    };
    for (const std::string& selector : selectors)
        for (int64_t block_size : o.block_sizes)
            for (int64_t top_k : o.top_ks)
                for (int64_t first : o.forced_first)
                    for (int64_t local : o.forced_local)
                        add(selector, block_size, {top_k, local, first});
    require(!grid.settings.empty(), "--block-size and --top-k leave no setting of at most ", most,
            " tokens, ", why_most);
    return grid;
}

}  // namespace msa::experiments::advise
