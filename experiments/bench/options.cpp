// SPDX-License-Identifier: MIT
#include "experiments/bench/options.h"

#include <algorithm>
#include <filesystem>

#include "experiments/cost/presets.h"
#include "experiments/driver/options.h"

namespace msa::experiments::bench {
namespace {

const About kAbout{
    .name = "msa-bench",
    .question = "How fast is each stage of MiniMax Sparse Attention, and the whole layer?",
    .usage = "[--out FILE] [options]",
    .examples = {"msa-bench --out results/bench.json",
                 "msa-bench --cases square --stages sparse_attention --order union,kv_outer",
                 "msa-bench --cases decode --batch 8 --tokens 1M --json",
                 "msa-bench --backend cpu --cases square,chunk --tokens 4K --samples 3",
                 "msa-bench --backend cpu --input data/sample.h5 --indexer results/fit/results.h5"},
    .writes =
        "FILE, the record: device, commit, sizes and every sample (data/FORMAT.md).\n\n"
        "Cases, by tokens N (keys of a sequence; of a pack, all tokens):\n\n"
        "- square: N queries over N keys; N 8K, 32K, 128K, 1M\n"
        "- chunk: the last 16K queries, at most N / 2; N 32K, 128K, 173824\n"
        "- short: the last 171 and 347 queries; N 18K, 132K\n"
        "- pack: N tokens in 2, 16 and 206 sequences; N 192K\n"
        "- decode: --batch sequences, 1 and 8 queries each; N 32K, 128K, 1M, at most 8M in all\n"
        "- top-k: k of N / Bk and 2 k of 2 N / Bk scores for N queries, select_blocks alone; "
        "N 128K, 512K\n\n"
        "With --input, every layer of that file is a case of its own (captured): q, k and v are\n"
        "the file's, as are its sequences and sizes; index_q and index_k are what the fitted "
        "Index\n"
        "Branch of --indexer makes of its x, else the file's own.\n\n"
        "Selections are what index_select makes of the index operands: noise (random), or a\n"
        "planted sink, diagonal and slowly moving stripes (structured, as msa-synth plants them);\n"
        "of captured layers, those of the Index Branch (fitted).\n"
        "A layer is index_select and sparse_attention, nothing waited for in between. block_mass,\n"
        "index_scores, index_kl and the gradients run on captured layers, and on square cases of "
        "up "
        "to\n"
        "128K unless --tokens says more. index_kl is one step of a fit: loss and gradients of 512 "
        "spread\n"
        "queries, on the selected support and on the full one.\n"
        "Before a stage is timed, sampled rows of its result are checked against the reference\n"
        "backend.",
};

const std::vector<std::string> kStages{
    "select_blocks", "block_mass",   "dense_attention",  "dense_attention_grad",
    "index_scores",  "index_select", "sparse_attention", "sparse_attention_grad",
    "index_kl",      "layer"};
const std::vector<std::string> kCases{"square", "chunk", "short", "pack", "decode", "top-k"};
const std::vector<std::string> kSelections{"structured", "random"};
/// Those of the default, then one that is slow and runs where it is named alone.
const std::vector<LoopOrder> kOrders{LoopOrder::automatic, LoopOrder::tile_union,
                                     LoopOrder::kv_outer, LoopOrder::q_outer};
constexpr const char* kDefaultOrders = "automatic,union,kv_outer";

/// What the command line says, word by word; empty and 0: not given.
struct Words {
    std::string stages, cases, selections, orders, tokens, batches = "1,8,32,64,128";
    std::string input, indexer, layers;
    std::string preset = "paper", element, index_element;
    Count query_heads, kv_heads, head_dim, index_dim, block_size, top_k, seed;
};

po::options_description describe(BenchOptions& o, Words& w) {
    po::options_description d;
    const auto size = [](Count& value, const char* name) {
        return po::value(&value)->value_name(name);
    };
    d.add_options()                                                                               //
        ("out", po::value(&o.out)->value_name("FILE"), "record to write, after every case anew")  //
        ("backend", po::value(&o.backend)->default_value(o.backend)->value_name("NAME"),
         "cuda, cpu or reference")  //
        ("input", po::value(&w.input)->value_name("FILE"),
         "activations whose layers are the cases")  //
        ("indexer", po::value(&w.indexer)->value_name("FILE"),
         "results.h5 of msa-fit-indexer, for index_q and index_k; default: those of --input")  //
        ("layers", po::value(&w.layers)->value_name("L,..."),
         "of --input; default: all with an Index Branch")  //
        ("stages", po::value(&w.stages)->value_name("NAME,..."),
         (join(kStages) + "; default: all").c_str())  //
        ("cases", po::value(&w.cases)->value_name("NAME,..."),
         (join(kCases) + ", see below; default: all").c_str())  //
        ("selection", po::value(&w.selections)->value_name("NAME,..."),
         "structured, random; default: both")  //
        ("order", po::value(&w.orders)->value_name("NAME,..."),
         "loop orders of sparse_attention and its gradient: automatic, union, kv_outer, q_outer; "
         "default: the first three")  //
        ("tokens", po::value(&w.tokens)->value_name("N,..."),
         "of every case; default: each case's own, see below")  //
        ("batch", po::value(&w.batches)->default_value(w.batches)->value_name("N,..."),
         "sequences of a decode step")  //
        ("preset", po::value(&w.preset)->default_value(w.preset)->value_name("MODEL"),
         ("sizes: a Hugging Face config.json, or " + join(cost::list_models())).c_str())  //
        ("query-heads", size(w.query_heads, "N"), "Hq; default: the model's")             //
        ("kv-heads", size(w.kv_heads, "N"), "Hkv, GQA groups; default: the model's")      //
        ("head-dim", size(w.head_dim, "N"), "dh; default: the model's")                   //
        ("index-dim", size(w.index_dim, "N"), "didx; default: the model's, else 128")     //
        ("block-size", size(w.block_size, "TOKENS"),
         "Bk; default: the model's or the indexer's, else 128")                                  //
        ("top-k", size(w.top_k, "BLOCKS"), "k; default: the model's or the indexer's, else 16")  //
        ("element", po::value(&w.element)->value_name("TYPE"),
         "of operands and outputs: bf16 or f32; default: bf16 on cuda, else f32")  //
        ("index-element", po::value(&w.index_element)->value_name("TYPE,..."),
         "of index_q and index_k: bf16, f32, e4m3; default: as --element, on cuda e4m3 too")  //
        ("samples", po::value(&o.samples)->default_value(o.samples)->value_name("N"),
         "timed samples per measurement; fewer where they take more than 10 s")  //
        ("seed", po::value(&w.seed)->default_value(w.seed)->value_name("N"),
         "of operands and sampled rows")                                              //
        ("overwrite", po::bool_switch(&o.overwrite), "replace a record that exists")  //
        ("json", po::bool_switch(&o.json), "print the record instead of the table");
    return d;
}

/// Is "--option" given with nothing behind it?
bool has_empty_value(std::span<const std::string> args, const std::string& option) {
    for (size_t n = 0; n < args.size(); ++n)
        if (args[n] == "--" + option + "=" ||
            (args[n] == "--" + option && n + 1 < args.size() && args[n + 1].empty()))
            return true;
    return false;
}

/// Do both paths lead to one file that exists?
bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
    std::error_code none;
    return std::filesystem::equivalent(a, b, none);
}

/// The names of a list, all of them known; an empty one stands for all.
std::vector<std::string> known_list(const std::string& option, const std::string& list,
                                    const std::vector<std::string>& known) {
    if (list.empty()) return known;
    std::vector<std::string> names = split_list(option, list);
    for (const std::string& name : names) choice(option, name, known);
    return names;
}

/// The one name that a list may have with --input.
std::string only_with_input(const std::string& option, const std::string& list,
                            const std::string& name) {
    require(list.empty() || list == name, "--", option, " is '", list, "', must be ", name,
            " with --input");
    return name;
}

/// Opens --input, which excludes whatever else says what the cases are.
void read_captured(std::span<const std::string> args, const Words& w, BenchOptions& o) {
    if (w.input.empty()) {
        for (const char* option : {"indexer", "layers"})
            require(!given(args, option), "--", option, " needs --input, a file of activations");
        return;
    }
    for (const char* option :
         {"tokens", "batch", "preset", "query-heads", "kv-heads", "head-dim", "index-dim"})
        require(!given(args, option), "--input brings its own sizes and excludes --", option);
    o.captured = std::make_shared<Captured>(
        w.input, w.indexer, w.layers.empty() ? std::vector<int64_t>() : layer_list(w.layers));
}

void read_sizes(std::span<const std::string> args, const Words& w, BenchOptions& o) {
    cost::Model model = cost::read_model(w.preset);
    o.model = model.name;
    o.sizes = cost::layer_sizes(model);
    if (o.captured) o.captured->take_sizes(o.sizes);
    const auto take = [&](const char* option, const Count& value, int64_t& size) {
        if (!given(args, option)) return;
        check_at_least(option, value.value, 1);
        size = value.value;
        o.model = "";  // sizes of one's own
    };
    take("query-heads", w.query_heads, o.sizes.query_heads);
    take("kv-heads", w.kv_heads, o.sizes.kv_heads);
    take("head-dim", w.head_dim, o.sizes.head_dim);
    take("index-dim", w.index_dim, o.sizes.index_dim);
    take("block-size", w.block_size, o.sizes.block_size);
    take("top-k", w.top_k, o.sizes.top_k);
    if (o.captured) o.model = o.captured->file().info().model_id;
    const auto read_element = [](const char* option, const std::string& name,
                                 const std::vector<Element>& known) {
        std::vector<std::string> names;
        for (Element element : known) names.emplace_back(to_string(element));
        return known[choice(option, name, names)];
    };
    o.sizes.element = o.backend == "cuda" ? Element::bf16 : Element::f32;
    if (!w.element.empty())
        o.sizes.element = read_element("element", w.element, {Element::bf16, Element::f32});
    o.index_elements = {o.sizes.element};
    if (o.backend == "cuda") o.index_elements.push_back(Element::e4m3);
    if (w.index_element.empty()) return;
    o.index_elements.clear();
    for (const std::string& name : split_list("index-element", w.index_element))
        o.index_elements.push_back(
            read_element("index-element", name, {Element::bf16, Element::f32, Element::e4m3}));
}

}  // namespace

bool BenchOptions::wants(const std::string& stage) const {
    return std::find(stages.begin(), stages.end(), stage) != stages.end();
}

std::optional<BenchOptions> parse_bench_options(std::span<const std::string> args,
                                                std::ostream& out) {
    BenchOptions o;
    Words w;
    if (!parse_command_line(kAbout, describe(o, w), "", args, out)) return std::nullopt;
    for (const char* list :
         {"stages", "cases", "selection", "order", "tokens", "batch", "layers", "index-element"})
        require(!has_empty_value(args, list), "--", list, " is empty, must name at least one");
    o.stages = known_list("stages", w.stages, kStages);
    if (w.input.empty()) {
        o.cases = known_list("cases", w.cases, kCases);
        o.selections = known_list("selection", w.selections, kSelections);
    } else {
        o.cases = {only_with_input("cases", w.cases, "captured")};
        o.selections = {only_with_input("selection", w.selections, "fitted")};
    }
    std::vector<std::string> orders;
    for (LoopOrder order : kOrders) orders.emplace_back(to_string(order));
    for (const std::string& name :
         known_list("order", w.orders.empty() ? kDefaultOrders : w.orders, orders))
        o.orders.push_back(kOrders[choice("order", name, orders)]);
    if (!w.tokens.empty()) o.tokens = integer_list("tokens", w.tokens);
    o.batches = integer_list("batch", w.batches);
    for (int64_t batch : o.batches) check_option("batch", batch, 1, 4096);
    read_captured(args, w, o);
    read_sizes(args, w, o);
    // Two blocks, so that there is something to choose from.
    for (int64_t tokens : o.tokens) check_at_least("tokens", tokens, 2 * o.sizes.block_size);
    check_option("samples", o.samples, 1, 1000);
    check_at_least("seed", w.seed.value, 0);
    o.seed = static_cast<uint64_t>(w.seed.value);
    for (const std::string& input : {w.input, w.indexer})
        require(o.out.empty() || input.empty() || !is_same_file(o.out, input), "--out is ", o.out,
                ", the file that is read as ", input, "; choose another");
    require(o.out.empty() || o.overwrite || !std::filesystem::exists(o.out), o.out,
            " exists; --overwrite replaces it");
    return o;
}

}  // namespace msa::experiments::bench
