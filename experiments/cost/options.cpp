// SPDX-License-Identifier: MIT
#include "experiments/cost/options.h"

#include <cmath>

#include "experiments/programs.h"
#include "experiments/report/text.h"

namespace msa::experiments::cost {
namespace {

const About kAbout{
    .program = kProgram,
    .usage = "[--preset NAME|FILE] [--context N,...] | --results FILE [options]",
    .examples = {"msa-cost --preset paper --context 32K,128K,512K,1M --hardware h100",
                 "msa-cost --preset qwen3-235b-a22b --context 1M --index-element e4m3 --json",
                 "msa-cost --context 512K,1M --gpus 2,8,64 --hardware h200",
                 "msa-cost --context 128K --union-blocks 21 --ceilings measured",
                 "msa-cost --results results/demo/results.h5 --hardware h100"},
    .writes = "",
};

const std::vector<Element> kElements{Element::bf16, Element::f16, Element::e4m3, Element::f32};

}  // namespace

OptionTable option_table(CostOptions& o) {
    OptionTable table(kAbout);
    table
        .text("preset", "MODEL", o.preset,
              "sizes: a Hugging Face config.json, or " + join(list_models()) +
                  "; default: " + o.preset)
        .offers(list_models())
        .shown_as("");
    table
        .counts("context", "N,...", o.contexts, "tokens of the sequence; default: 32K,128K,512K,1M")
        .shown_as("");
    table.count("block-size", "TOKENS", o.block_size, "Bk; default: the model's, else 128");
    table.count("top-k", "BLOCKS", o.top_k, "k; default: the model's, else 16");
    table.count("index-dim", "N", o.index_dim,
                concat("didx; default: the model's, else ", kDefaultIndexDim));
    table.real("union-blocks", "BLOCKS", o.union_blocks,
               "distinct blocks that neighbouring queries of a tile (128 / G, at most 32) select, "
               "mean; default: as if each query chose by chance");
    table.element("element", o.element, kElements, "of q, k, v and outputs: bf16, f16, e4m3 or f32")
        .shown_as("bf16");
    table.element("index-element", o.index_element, kElements,
                  "of index_q and index_k; default: as --element");
    table.counts("gpus", "N,...", o.gpus,
                 "what a layer takes that is divided among so many GPUs, instead of stages",
                 between(1, 1 << 16));
    table
        .text("hardware", "CHIP", o.hardware,
              "a JSON file like those of data/hardware, or " + join(list_hardware()))
        .offers(list_hardware());
    table.choice("ceilings", "WHICH", o.ceilings, {"peak", "measured"},
                 "rates of the roofline: peak (published) or measured");
    table.path("results", "FILE", o.results,
               "cost the blocks selected in a results file, instead of sizes");
    table.numbers("layers", "L,...", o.layers, "of the results; default: all");
    table.names(
        "selectors", "NAME,...", o.selectors, [](const std::string& name) { return name; },
        "of the results, repeatable; default: all");
    table.flag("stages", o.stages, "print the stages of every pipeline, too").unrecorded();
    table.flag("json", o.json, "print JSON, which has the stages, instead of the tables")
        .unrecorded();
    return table;
}

namespace {

/// With --results, sizes come from the file; without, there is nothing to pick from.
void check_exclusions(std::span<const std::string> args) {
    const bool measured = given(args, "results");
    for (const char* name : {"preset", "context", "block-size", "top-k", "index-dim",
                             "union-blocks", "index-element", "gpus"})
        require(!measured || !given(args, name), "--results brings its own sizes and excludes --",
                name);
    for (const char* name : {"layers", "selectors"})
        require(measured || !given(args, name), "--", name,
                " picks from --results, which is not given");
}

}  // namespace

std::optional<CostOptions> parse_cost_options(std::span<const std::string> args,
                                              std::ostream& out) {
    CostOptions o;
    if (!option_table(o).parse(args, out)) return std::nullopt;
    check_exclusions(args);
    for (int64_t tokens : o.contexts) check_option("context", tokens, 1, int64_t{1} << 40);
    for (const auto& [option, count] :
         {std::pair{"block-size", o.block_size}, {"top-k", o.top_k}, {"index-dim", o.index_dim}})
        check_option(option, count.value_or(1), 1, int64_t{1} << 31);
    require(std::isfinite(o.union_blocks.value_or(0)), "--union-blocks is ",
            o.union_blocks.value_or(0), ", must be a number");
    o.element = o.element.value_or(Element::bf16);
    o.index_element = o.index_element.value_or(*o.element);
    return o;
}

}  // namespace msa::experiments::cost
