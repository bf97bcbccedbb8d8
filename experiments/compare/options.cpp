// SPDX-License-Identifier: MIT
#include "experiments/compare/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "experiments/compare/policies.h"

namespace msa::experiments::compare {
namespace {

const About kAbout{
    .name = "msa-compare",
    .question = "Which selector keeps most of the attention at an equal budget, and at what cost?",
    .usage = "FILE --out DIR [options]",
    .examples = {"msa-compare data/sample.h5 --out results/compare --budgets 256,512 --block-size "
                 "64 --sample-queries 256",
                 "msa-compare data/sample.h5 --out results/blocks --ablation block-size "
                 "--selectors oracle,mean-key --budgets 512 --sample-queries 256"},
    .writes =
        "DIR/results.h5 (groups /layers, /metrics, /overlap, /distance, /select, /queries, "
        "/checks,\n"
        "/timing; see data/FORMAT.md), DIR/summary.json, DIR/metrics.csv, DIR/tables.txt (what is\n"
        "printed) and DIR/timing.json.\n"
        "Every run checks itself: no selector may keep more than the best choice of as many "
        "blocks,\n"
        "and a budget that covers everything must equal dense attention.",
};

const std::vector<std::string> kSharings{"head", "group", "layer"};
const std::vector<std::string> kAblations{"none", "block-size", "forced", "window"};
const char* const kAll = "all";

Budget parse_budget(const std::string& item) {
    Budget budget{item, 0, item.find('.') != std::string::npos};
    if (!budget.is_share) {
        budget.value = static_cast<double>(integer_list("budgets", item).front());
        require(budget.value >= 1, "--budgets has ", item, ", must be at least 1 token");
        return budget;
    }
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), budget.value);
    require(error == std::errc() && end == item.data() + item.size() && budget.value > 0 &&
                budget.value <= 1,
            "--budgets has '", item, "', a share of the context must be above 0.0 and at most 1.0");
    return budget;
}

std::vector<std::string> parse_selectors(const std::string& list) {
    std::vector<std::string> chosen;
    if (list == kAll) return chosen;
    for (const std::string& item : split_list("selectors", list)) {
        const std::string name = policy_name(item);
        require(std::find(chosen.begin(), chosen.end(), name) == chosen.end(),
                "--selectors names '", name, "' twice");
        chosen.push_back(name);
    }
    return chosen;
}

}  // namespace

int64_t Budget::tokens(int64_t context) const {
    return is_share ? std::llround(value * static_cast<double>(context))
                    : static_cast<int64_t>(value);
}

const char* to_string(Sharing sharing) { return kSharings[static_cast<size_t>(sharing)].c_str(); }

const char* to_string(Ablation ablation) {
    return kAblations[static_cast<size_t>(ablation)].c_str();
}

std::optional<CompareOptions> parse_compare_options(std::span<const std::string> args,
                                                    std::ostream& out) {
    CompareOptions o;
    std::string file, directory, layers, element, index_element, selectors, budgets, ablation,
        sharing, forced, phase;
    Count block_size{o.block_size}, sample, seed, prompt;
    po::options_description d;
    d.add_options()                                                                          //
        ("input", po::value(&file)->value_name("FILE"), "activations to read (positional)")  //
        ("out", po::value(&directory)->value_name("DIR"), "directory for the results")       //
        ("layers", po::value(&layers)->value_name("L,..."), "layers; default: all")          //
        ("selectors", po::value(&selectors)->default_value(kAll)->value_name("NAME,..."),
         ("all that the file has operands for, or some of: " + join(list_policies())).c_str())  //
        ("budgets",
         po::value(&budgets)->default_value("256,512,1024,2048")->value_name("TOKENS,..."),
         "tokens that a query attends to, rounded up to whole blocks; with a point (0.1), a share "
         "of "
         "the longest sequence")  //
        ("ablation", po::value(&ablation)->default_value("none")->value_name("WHAT"),
         "one table of the paper's appendix: block-size (32, 64, 128 at equal budget), forced "
         "(first and newest blocks), window (against a window of equal budget and of equal "
         "FLOPs); none: the plain comparison")  //
        ("block-size", po::value(&block_size)->default_value(block_size)->value_name("TOKENS"),
         "Bk, tokens of a key block")  //
        ("forced-local",
         po::value(&o.forced_local)->default_value(o.forced_local)->value_name("BLOCKS"),
         "newest blocks always kept, the query's own among them")  //
        ("forced-first",
         po::value(&o.forced_first)->default_value(o.forced_first)->value_name("BLOCKS"),
         "oldest blocks always kept")  //
        ("forced", po::value(&forced)->default_value("inside")->value_name("WHERE"),
         "forced blocks count inside the budget, or come outside, on top of it")  //
        ("share", po::value(&sharing)->default_value("group")->value_name("UNIT"),
         "query heads that share a choice of blocks: head, group, layer")  //
        ("phase", po::value(&phase)->default_value("prefill")->value_name("PHASE"),
         "prefill, or decode: the tokens behind the prompt come one by one")  //
        ("prompt", po::value(&prompt)->value_name("TOKENS"),
         "of each sequence in the decode phase")  //
        ("sample-queries", po::value(&sample)->value_name("N"),
         "compare at N of the queries, evenly spread, drawn with --seed")  //
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
        ("resume", po::bool_switch(&o.resume), "continue an unfinished run with these options")  //
        ("overwrite", po::bool_switch(&o.overwrite), "replace results that exist")               //
        ("json", po::bool_switch(&o.json), "print summary.json instead of the tables");
    if (!parse_command_line(kAbout, d, "input", args, out)) return std::nullopt;

    require(!file.empty(), "no input: name an activations file; --help shows how");
    require(!directory.empty(), "no output: name a directory with --out");
    o.file = file;
    o.out = directory;
    if (!layers.empty()) o.layers = integer_list("layers", layers);
    std::sort(o.layers.begin(), o.layers.end());
    const auto twice = std::adjacent_find(o.layers.begin(), o.layers.end());
    require(twice == o.layers.end(), "--layers is '", layers, "', it names a layer twice");
    o.selectors = parse_selectors(selectors);
    for (const std::string& item : split_list("budgets", budgets))
        o.budgets.push_back(parse_budget(item));
    o.ablation = static_cast<Ablation>(choice("ablation", ablation, kAblations));
    o.block_size = block_size.value;
    check_option("block-size", o.block_size, kMinBlockSize, kMaxBlockSize);
    check_at_least("forced-local", o.forced_local, 1);
    check_at_least("forced-first", o.forced_first, 0);
    o.forced_outside = choice("forced", forced, {"inside", "outside"}) == 1;
    o.sharing = static_cast<Sharing>(choice("share", sharing, kSharings));
    const bool decode = choice("phase", phase, {"prefill", "decode"}) == 1;
    require(decode == (prompt.value > 0),
            "--phase decode needs --prompt, at least 1 token, and --prompt needs --phase decode");
    o.prompt = prompt.value;
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
    require(!(o.resume && o.overwrite), "--resume and --overwrite exclude each other");
    return o;
}

std::string CompareOptions::identity() const {
    std::vector<std::string> asked;
    for (const Budget& budget : budgets) asked.push_back(budget.asked);
    return nlohmann::ordered_json{
        {"layers", layers},
        {"selectors", selectors},
        {"budgets", asked},
        {"ablation", to_string(ablation)},
        {"block_size", block_size},
        {"forced_local", forced_local},
        {"forced_first", forced_first},
        {"forced", forced_outside ? "outside the budget" : "inside the budget"},
        {"share", to_string(sharing)},
        {"phase", prompt > 0 ? "decode" : "prefill"},
        {"prompt", prompt},
        {"sample_queries", sample_queries},
        {"backend", backend},
        {"element", element.main ? to_string(*element.main) : "as stored"},
        {"index_element", element.index ? to_string(*element.index) : "as stored"},
    }
        .dump();
}

}  // namespace msa::experiments::compare
