// SPDX-License-Identifier: MIT
#include "experiments/analyze/options.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/select/selector.h"

namespace msa::experiments::analyze {
namespace {

const About kAbout{
    .name = "msa-analyze",
    .question =
        "What does MiniMax Sparse Attention select on my activations, and what does it "
        "lose?",
    .usage = "FILE --out DIR [options]",
    .examples = {"msa-analyze data/sample.h5 --out results/first --block-size 32",
                 "msa-analyze data/sample.h5 --out results/sampled --selector oracle,window "
                 "--block-size 64 --top-k 8 --sample-queries 512"},
    .writes =
        "DIR/results.h5 (groups /queries, /layers, /select, /metrics, /curves, /popularity,\n"
        "and with --dump /outputs, /mass, /scores; see data/FORMAT.md), DIR/summary.json and\n"
        "DIR/metrics.csv.",
};

}  // namespace

std::optional<AnalyzeOptions> parse_analyze_options(std::span<const std::string> args,
                                                    std::ostream& out) {
    AnalyzeOptions o;
    std::string file, directory, layers, element, index_element, dump, oracle, oracle_local;
    std::vector<std::string> selectors;
    Count block_size{o.block_size}, top_k{o.rule.top_k}, sample, seed;
    po::options_description d;
    d.add_options()                                                                          //
        ("input", po::value(&file)->value_name("FILE"), "activations to read (positional)")  //
        ("out", po::value(&directory)->value_name("DIR"), "directory for the results")       //
        ("layers", po::value(&layers)->value_name("L,..."), "layers; default: all")          //
        ("selector", po::value(&selectors)->value_name("NAME,..."),
         ("selectors, repeatable: " + join(list_pointwise_selectors()) +
          "; default: all that the file has operands for")
             .c_str())  //
        ("block-size", po::value(&block_size)->default_value(block_size)->value_name("TOKENS"),
         "Bk, tokens of a key block")  //
        ("top-k", po::value(&top_k)->default_value(top_k)->value_name("BLOCKS"),
         "k, blocks kept per query and group, forced ones included")  //
        ("forced-local",
         po::value(&o.rule.forced_local)->default_value(o.rule.forced_local)->value_name("BLOCKS"),
         "newest blocks always kept, the query's own among them")  //
        ("forced-first",
         po::value(&o.rule.forced_first)->default_value(o.rule.forced_first)->value_name("BLOCKS"),
         "oldest blocks always kept")  //
        ("oracle", po::value(&oracle)->default_value("mass")->value_name("RANK"),
         "how I* ranks blocks: mass (probability) or max-logit")  //
        ("oracle-local", po::value(&oracle_local)->default_value("included")->value_name("WHETHER"),
         "the query's own block in I*: included or excluded")  //
        ("all-rows", po::bool_switch(&o.all_rows),
         "count queries whose visible blocks all fit into k, too")  //
        ("sink-tokens",
         po::value(&o.sink_tokens)->default_value(o.sink_tokens)->value_name("TOKENS"),
         "tokens that count as the sink, beside token 0 alone")  //
        ("queries", po::value(&o.queries)->value_name("A:B"),
         "analyse the queries of these packed tokens only")  //
        ("sample-queries", po::value(&sample)->value_name("N"),
         "analyse N of the queries, evenly spread, drawn with --seed")  //
        ("seed", po::value(&seed)->default_value(seed)->value_name("N"),
         "of sampling and of random")  //
        ("backend", po::value(&o.backend)->default_value(o.backend)->value_name("NAME"),
         "reference, cpu, cuda")  //
        ("device", po::value(&o.backend_options.device)->default_value(0)->value_name("N"),
         "ordinal of the GPU that cuda uses")  //
        ("threads", po::value(&o.backend_options.threads)->default_value(0)->value_name("N"),
         "CPU threads; 0: all")  //
        ("element", po::value(&element)->value_name("TYPE"),
         "round q, k and v to f32, bf16 or f16; default: as the file stores them")  //
        ("index-element", po::value(&index_element)->value_name("TYPE"),
         "round index_q and index_k to f32, bf16, f16 or e4m3; default: as the file stores them")  //
        ("dump", po::value(&dump)->value_name("WHAT,..."),
         "also store ids (always stored), outputs, mass, scores")                                //
        ("resume", po::bool_switch(&o.resume), "continue an unfinished run with these options")  //
        ("overwrite", po::bool_switch(&o.overwrite), "replace results that exist")               //
        ("json", po::bool_switch(&o.json), "print summary.json instead of the table");
    if (!parse_command_line(kAbout, d, "input", args, out)) return std::nullopt;

    require(!file.empty(), "no input: name an activations file; --help shows how");
    require(!directory.empty(), "no output: name a directory with --out");
    o.file = file;
    o.out = directory;
    if (!layers.empty()) o.layers = layer_list(layers);
    for (const std::string& list : selectors)
        for (const std::string& name : split_list("selector", list)) {
            choice("selector", name, list_pointwise_selectors());
            require(std::find(o.selectors.begin(), o.selectors.end(), name) == o.selectors.end(),
                    "--selector names '", name, "' twice");
            o.selectors.push_back(name);
        }
    o.block_size = block_size.value;
    check_option("block-size", o.block_size, kMinBlockSize, kMaxBlockSize);
    o.rule.top_k = top_k.value;
    check_at_least("top-k", o.rule.top_k, 1);
    o.rule.validate();
    o.oracle_by_logit = choice("oracle", oracle, {"mass", "max-logit"}) == 1;
    o.oracle_without_local = choice("oracle-local", oracle_local, {"included", "excluded"}) == 1;
    check_at_least("sink-tokens", o.sink_tokens, 1);
    o.sample_queries = sample.value;
    check_at_least("sample-queries", o.sample_queries, 0);
    check_at_least("seed", seed.value, 0);
    o.seed = static_cast<uint64_t>(seed.value);
    o.element.main =
        element_option("element", element, {Element::f32, Element::bf16, Element::f16});
    o.element.index = element_option("index-element", index_element,
                                     {Element::f32, Element::bf16, Element::f16, Element::e4m3});
    check_at_least("device", o.backend_options.device, 0);
    check_option("threads", o.backend_options.threads, 0, 4096);
    if (!dump.empty())
        for (const std::string& what : split_list("dump", dump)) {
            const size_t at = choice("dump", what, {"ids", "outputs", "mass", "scores"});
            if (at == 1) o.dump_outputs = true;
            if (at == 2) o.dump_mass = true;
            if (at == 3) o.dump_scores = true;
        }
    require(!(o.resume && o.overwrite), "--resume and --overwrite exclude each other");
    return o;
}

std::string AnalyzeOptions::identity() const {
    std::ostringstream range;
    range << queries;
    return nlohmann::ordered_json{
        {"layers", layers},
        {"selectors", selectors},
        {"block_size", block_size},
        {"top_k", rule.top_k},
        {"forced_local", rule.forced_local},
        {"forced_first", rule.forced_first},
        {"oracle", oracle_by_logit ? "max-logit" : "mass"},
        {"oracle_local", oracle_without_local ? "excluded" : "included"},
        {"all_rows", all_rows},
        {"sink_tokens", sink_tokens},
        {"queries", range.str()},
        {"sample_queries", sample_queries},
        {"backend", backend},
        {"element", element.main ? to_string(*element.main) : "as stored"},
        {"index_element", element.index ? to_string(*element.index) : "as stored"},
        {"dump_outputs", dump_outputs},
        {"dump_mass", dump_mass},
        {"dump_scores", dump_scores},
    }
        .dump();
}

}  // namespace msa::experiments::analyze
