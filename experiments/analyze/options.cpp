// SPDX-License-Identifier: MIT
#include "experiments/analyze/options.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/select/selector.h"
#include "experiments/driver/full_layers.h"
#include "experiments/programs.h"

namespace msa::experiments::analyze {
namespace {

const About kAbout{
    .program = kProgram,
    .usage = "FILE... --out DIR [options]",
    .examples = {"msa-analyze data/sample.h5 --out results/first --block-size 32",
                 "msa-analyze data/sample.h5 --out results/sampled --selectors oracle,window "
                 "--block-size 64 --top-k 8 --sample-queries 512"},
    .writes =
        "DIR/results.h5 (groups /queries, /layers, /select, /metrics, /curves, /popularity,\n"
        "and with --dump /outputs, /mass, /scores; see data/FORMAT.md), DIR/summary.json\n"
        "(tables, see there), DIR/tables/NAME.csv, DIR/metrics.csv and DIR/analyze.txt (what is\n"
        "printed).",
};

const std::vector<std::string> kDumps{"outputs", "mass", "scores"};

std::string known_dump(const std::string& name) { return kDumps[choice("dump", name, kDumps)]; }

}  // namespace

bool AnalyzeOptions::dumps(const std::string& what) const {
    return std::find(dump.begin(), dump.end(), what) != dump.end();
}

OptionTable option_table(AnalyzeOptions& o) {
    OptionTable table(kAbout);
    add_files(table, o);
    table.numbers("layers", "L,...", o.layers, kFullLayersHelp);
    add_selectors(table, o.selectors, list_pointwise_selectors());
    add_sizes(table, o, &o.forced_first);
    add_oracle(table, o);
    table.count("sink-tokens", "TOKENS", o.sink_tokens,
                "first tokens that also count as the sink, in addition to token 0 alone",
                at_least(1));
    add_queries(table, o);
    table.seed(o.seed, "seed of sampling and the selector random");
    add_compute(table, o);
    add_index_element(table, o);
    table
        .names("dump", "WHAT,...", o.dump, known_dump,
               "also store outputs, mass, scores; ids are always stored")
        .offers({"outputs", "mass", "scores"});
    add_unit_queries(table, o);
    add_existing(table, o);
    return table;
}

std::optional<AnalyzeOptions> parse_analyze_options(std::span<const std::string> args,
                                                    std::ostream& out) {
    AnalyzeOptions o;
    if (!option_table(o).parse(args, out)) return std::nullopt;
    for (const std::string& name : o.selectors) pointwise_selector("selectors", name);
    sort_sizes(o.forced_first);
    o.rule.forced_first = o.forced_first.back();
    o.rule.validate();
    o.rule.forced_first = o.forced_first.front();
    return o;
}

}  // namespace msa::experiments::analyze
