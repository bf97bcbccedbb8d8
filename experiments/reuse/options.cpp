// SPDX-License-Identifier: MIT
#include "experiments/reuse/options.h"

#include "core/select/selector.h"
#include "experiments/driver/layer_pattern.h"
#include "experiments/programs.h"
#include "experiments/report/text.h"

namespace msa::experiments::reuse {
namespace {

const About kAbout{
    .program = kProgram,
    .usage = "FILE... --out DIR [--lose SHARE | --keep SHARE | --error E] [options]",
    .examples = {"msa-synth --out /tmp/layers.h5 --tokens 4K --model-layers 6",
                 "msa-reuse /tmp/layers.h5 --out results/reuse --block-size 64 --top-k 8",
                 "msa-reuse /tmp/layers.h5 --out results/reuse-groups --block-size 64 --top-k 8 "
                 "--selectors mean-key --lose 0.3 --every 3 --groups 1-3,4-5"},
    .writes =
        "DIR/results.h5 (groups /layers, /queries, /reuse; see data/FORMAT.md), DIR/summary.json\n"
        "(tables, see there), DIR/tables/NAME.csv and DIR/reuse.txt (what is printed). If no\n"
        "pattern reaches the target, the nearest one is named, and the exit code is 2.",
};

constexpr double kDefaultLose = 0.01;

}  // namespace

OptionTable option_table(ReuseOptions& o) {
    OptionTable table(kAbout);
    add_files(table, o);
    table.real("lose", "SHARE", o.lose,
               "target: with shared ids, a layer loses at most this share of the attention mass "
               "against its own ids; default, with 0.01",
               {"at least 0 and below 1", [](double value) { return value >= 0 && value < 1; }});
    table.real("keep", "SHARE", o.keep, "target: a layer keeps this share of the attention mass",
               proper_share());
    table.real("error", "E", o.error, "target: at most this relative output error", positive());
    table.counts("every", "N,...", o.every,
                 "patterns to report: a layer computes its own ids every N layers of the model",
                 at_least(1));
    add_groups(table, o.groups,
               "a pattern to report: layers A to B share the ids of A; layers in no group compute "
               "their own");
    table.numbers("layers", "L,...", o.layers,
                  "layers, of which those with a sliding window keep it at its own cost; default: "
                  "all of the file, which must be consecutive");
    table
        .text("selectors", "NAME", o.selector,
              "the one whose ids are shared, of: " + join(list_pointwise_selectors()) +
                  options_help(list_pointwise_selectors()))
        .as("selector")
        .offers(list_pointwise_selectors());
    add_sizes(table, o);
    add_all_rows(table, o);
    add_queries(table, o);
    table.seed(o.seed, "seed of sampling, the bootstrap and the selector random");
    add_pricing(table, o);
    add_compute(table, o);
    add_index_element(table, o);
    add_existing(table, o);
    return table;
}

std::optional<ReuseOptions> parse_reuse_options(std::span<const std::string> args,
                                                std::ostream& out) {
    ReuseOptions o;
    if (!option_table(o).parse(args, out)) return std::nullopt;
    o.selector = pointwise_selector("selectors", o.selector);
    o.check_target(&TargetOptions::lose, kDefaultLose);
    o.rule.validate();
    return o;
}

}  // namespace msa::experiments::reuse
