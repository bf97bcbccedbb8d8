// SPDX-License-Identifier: MIT
#include "experiments/cost/options.h"

#include <cmath>

namespace msa::experiments::cost {
namespace {

const About kAbout{
    .name = "msa-cost",
    .question = "What does MiniMax Sparse Attention cost, and in which loop order?",
    .usage = "[--preset NAME|FILE] [--context N,...] | --results FILE [options]",
    .examples = {"msa-cost --preset paper --context 32K,128K,512K,1M --hardware h100",
                 "msa-cost --preset qwen3-235b-a22b --context 1M --index-element e4m3 --json",
                 "msa-cost --context 128K --tile-union 21 --ceilings measured",
                 "msa-cost --results results/demo/results.h5 --hardware h100"},
    .writes = "",
};

Element read_element(const std::string& option, const std::string& name) {
    const std::vector<Element> known{Element::bf16, Element::f16, Element::e4m3, Element::f32};
    std::vector<std::string> names;
    for (Element element : known) names.emplace_back(to_string(element));
    return known[choice(option, name, names)];
}

/// What the command line says, word by word.
struct Words {
    std::string preset, context, element = "bf16", index_element, ceilings = "peak", layers;
    std::vector<std::string> selectors;
    Count block_size, top_k, index_dim;
    double tile_union = 0;
    bool json = false, csv = false;
};

po::options_description describe(CostOptions& o, Words& w) {
    po::options_description d;
    d.add_options()  //
        ("preset", po::value(&w.preset)->value_name("MODEL"),
         ("sizes: a Hugging Face config.json, or " + join(list_models()) + "; default: " + o.preset)
             .c_str())  //
        ("context", po::value(&w.context)->value_name("N,..."),
         "tokens of the sequence; default: 32K,128K,512K,1M")  //
        ("block-size", po::value(&w.block_size)->value_name("TOKENS"),
         "Bk; default: the model's, else 128")  //
        ("top-k", po::value(&w.top_k)->value_name("BLOCKS"),
         "k; default: the model's, else 16")  //
        ("index-dim", po::value(&w.index_dim)->value_name("N"),
         "didx; default: the model's, else 128")  //
        ("tile-union", po::value(&w.tile_union)->value_name("BLOCKS"),
         "distinct blocks that neighbouring queries of a tile (128 / G, at most 32) select, mean; "
         "default: as if each query chose by chance")  //
        ("element", po::value(&w.element)->default_value(w.element)->value_name("TYPE"),
         "of q, k, v and outputs: bf16, f16, e4m3 or f32")  //
        ("index-element", po::value(&w.index_element)->value_name("TYPE"),
         "of index_q and index_k; default: as --element")  //
        ("hardware", po::value(&o.hardware)->default_value(o.hardware)->value_name("CHIP"),
         ("a JSON file like those of data/hardware, or " + join(list_hardware())).c_str())  //
        ("ceilings", po::value(&w.ceilings)->default_value(w.ceilings)->value_name("WHICH"),
         "of the roofline: peak (published) or measured")  //
        ("results", po::value(&o.results)->value_name("FILE"),
         "cost the blocks selected in a results file, instead of sizes")                       //
        ("layers", po::value(&w.layers)->value_name("L,..."), "of the results; default: all")  //
        ("selector", po::value(&w.selectors)->value_name("NAME,..."),
         "of the results, repeatable; default: all")                            //
        ("json", po::bool_switch(&w.json), "print JSON instead of the tables")  //
        ("csv", po::bool_switch(&w.csv), "print CSV, one line per stage or loop order");
    return d;
}

/// With --results, sizes come from the file; without, there is nothing to pick from.
void check_exclusions(std::span<const std::string> args) {
    const bool measured = given(args, "results");
    for (const char* name :
         {"preset", "context", "block-size", "top-k", "index-dim", "tile-union", "index-element"})
        require(!measured || !given(args, name), "--results brings its own sizes and excludes --",
                name);
    for (const char* name : {"layers", "selector"})
        require(measured || !given(args, name), "--", name,
                " picks from --results, which is not given");
    require(!(given(args, "json") && given(args, "csv")), "--json and --csv exclude each other");
}

}  // namespace

std::optional<CostOptions> parse_cost_options(std::span<const std::string> args,
                                              std::ostream& out) {
    CostOptions o;
    Words w;
    if (!parse_command_line(kAbout, describe(o, w), "", args, out)) return std::nullopt;
    check_exclusions(args);
    const auto size = [&](const char* option, const Count& count) -> std::optional<int64_t> {
        if (!given(args, option)) return std::nullopt;
        check_option(option, count.value, 1, int64_t{1} << 31);
        return count.value;
    };
    if (given(args, "preset")) o.preset = w.preset;
    if (given(args, "context")) o.contexts = integer_list("context", w.context);
    for (int64_t tokens : o.contexts) check_option("context", tokens, 1, int64_t{1} << 40);
    o.block_size = size("block-size", w.block_size);
    o.top_k = size("top-k", w.top_k);
    o.index_dim = size("index-dim", w.index_dim);
    if (given(args, "tile-union")) o.tile_union = w.tile_union;
    require(std::isfinite(w.tile_union), "--tile-union is ", w.tile_union, ", must be a number");
    o.element = read_element("element", w.element);
    o.index_element =
        given(args, "index-element") ? read_element("index-element", w.index_element) : o.element;
    o.ceilings = choice("ceilings", w.ceilings, {"peak", "measured"}) == 1 ? Ceilings::measured
                                                                           : Ceilings::peak;
    require(!given(args, "results") || !o.results.empty(),
            "--results is '', must be the path of a results file");
    if (given(args, "layers")) o.layers = layer_list(w.layers);
    for (const std::string& list : w.selectors)
        for (const std::string& name : split_list("selector", list)) o.selectors.push_back(name);
    o.format = w.json ? Format::json : w.csv ? Format::csv : Format::table;
    return o;
}

}  // namespace msa::experiments::cost
