// SPDX-License-Identifier: MIT
#include "experiments/cache/options.h"

#include <algorithm>

#include "experiments/driver/layers.h"
#include "experiments/programs.h"

namespace msa::experiments::cache {
namespace {

const About kAbout{
    .program = kProgram,
    .usage = "FILE --out DIR [--link GB/s] [--time-per-token US] [options]",
    .examples = {"msa-cache results/first/results.h5 --out results/cache",
                 "msa-cache results/first/results.h5 --out results/cache-pcie4 --link 32 "
                 "--time-per-token 5000 --element bf16 --selectors oracle,quest"},
    .writes =
        "DIR/results.h5 (groups /layers, /cache; see data/FORMAT.md), DIR/summary.json\n"
        "(tables, see there), DIR/tables/NAME.csv and DIR/cache.txt (what is printed). If no\n"
        "cache keeps the link within its time, the nearest one is named, and the exit code is 2.",
};

const std::vector<Element> kElements{Element::bf16, Element::f16, Element::e4m3, Element::f32};
constexpr double kMostBlocks = 1 << 30;

}  // namespace

OptionTable option_table(CacheOptions& o) {
    OptionTable table(kAbout);
    table
        .path("input", "FILE", o.results,
              "results.h5 of msa-analyze, one file (positional); to use several captures, analyse "
              "them as one data set. The queries of a sequence are decode steps and must be "
              "consecutive")
        .without_flag()
        .unrecorded()
        .required("no input: name a results file of msa-analyze; --help shows how");
    add_output(table, o);
    table.real("link", "GB/S", o.link,
               "bandwidth of the link into the GPU, 10^9 bytes a second one way; PCIe 5.0 x16: 64, "
               "PCIe 4.0 x16: 32",
               positive());
    table.real("time-per-token", "US", o.time_per_token,
               "time of a decode step in microseconds, all of which the link may use", positive());
    table.choice("prefetch", "BY", o.prefetch, {"none", kByLayer},
                 concat("prefetching that the recommendation assumes: none, or ", kByLayer,
                        ", which fetches the blocks that the previous layer selected; these cross "
                        "the link even if they are not used. FILE must have the layer directly "
                        "before each chosen one, except its first"));
    add_model_layers(table, o.model_layers);
    table.counts("sizes", "BLOCKS,...", o.sizes,
                 "sizes of the cache, per layer and group; default: from k to the context, in "
                 "steps of sqrt 2",
                 between(1, kMostBlocks));
    table.element(
        "element", o.element, kElements,
        "type of the cached keys and values: bf16, f16, e4m3 or f32; default: as in FILE");
    table.numbers("layers", "L,...", o.layers, "layers; default: all");
    table.names(
        "selectors", "NAME,...", o.selectors, [](const std::string& name) { return name; },
        "of FILE, repeatable; default: all");
    add_existing(table, o);
    return table;
}

std::optional<CacheOptions> parse_cache_options(std::span<const std::string> args,
                                                std::ostream& out) {
    CacheOptions o;
    if (!option_table(o).parse(args, out)) return std::nullopt;
    sort_sizes(o.sizes);
    return o;
}

}  // namespace msa::experiments::cache
