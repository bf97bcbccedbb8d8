// SPDX-License-Identifier: MIT
#include "experiments/bench/options.h"

#include <algorithm>
#include <filesystem>

#include "core/registry.h"
#include "experiments/driver/presets.h"
#include "experiments/programs.h"
#include "experiments/report/text.h"

namespace msa::experiments::bench {
namespace {

const About kAbout{
    .program = kProgram,
    .usage = "[--out FILE] [options]",
    .examples = {"msa-bench --out results/bench.json",
                 "msa-bench --cases square --stages sparse_attention --order union,kv_outer",
                 "msa-bench --cases decode --batch 8 --tokens 1M --json",
                 "msa-bench --devices 0,1 --tokens 512K,1M --samples 5",
                 "msa-bench --backend cpu --cases square,chunk --tokens 4K --samples 3",
                 "msa-bench --backend cpu --input data/sample.h5 --indexer results/fit/results.h5"},
    .writes =
        "FILE, the record: device, commit, sizes and every sample (data/FORMAT.md).\n\n"
        "Cases, by tokens N (keys of a sequence; of a pack, all tokens); N on a GPU, and 8K "
        "elsewhere:\n\n"
        "- square: N queries over N keys; N 8K, 32K, 128K, 1M\n"
        "- chunk: the last 16K queries, at most N / 2; N 32K, 128K, 173824\n"
        "- short: the last 171 and 347 queries; N 18K, 132K\n"
        "- pack: N tokens in 2, 16 and 206 sequences; N 192K\n"
        "- decode: --batch sequences, 1 and 8 queries each; N 32K, 128K, 1M, at most 8M in all\n"
        "- mixed: one query each of N tokens and of 63 times N / 128; the last 16K queries, at "
        "most "
        "N / 16,\n"
        "  of N / 8 beside one each of 32 times N / 32; N 1M\n"
        "- top-k: k of N / Bk and 2 k of 2 N / Bk scores for N queries, select_blocks alone; N "
        "128K, 512K\n\n"
        "With --input, every layer of that file is a case of its own (captured). Sequences, sizes, "
        "q, k and\n"
        "v are the file's. index_q and index_k are computed from its x by the fitted Index Branch "
        "of\n"
        "--indexer, or are the file's own.\n\n"
        "Selections are those of index_select on the index operands: noise (random); a planted "
        "sink,\n"
        "diagonal and slowly moving stripes (structured, like those of msa-synth), of which "
        "neighbouring\n"
        "queries share more than of a fitted Index Branch's; or stripes and noise set to what "
        "fitted Index\n"
        "Branches choose (fitted: docs/methods.md). With --input, fitted are the file's or "
        "the fit's own.\n\n"
        "- layer: index_select and sparse_attention, without waiting in between.\n"
        "- block_mass, index_scores, index_kl and the gradients run on captured layers, and on "
        "square cases\n"
        "  of up to 128K unless --tokens says more.\n"
        "- index_kl: one step of a fit, the loss and gradients of 512 spread queries, on the "
        "selected and on\n"
        "  the full support; with \", lse\", only the gradients, given the lse.\n"
        "- index_kl_grad: the gradients of all queries, given the lse, as in training.\n"
        "- layer_grad: one layer's training step, that is index_select with its lse, "
        "sparse_attention and its\n"
        "  gradient, and index_kl_grad on the selected support. Its speed-up is over "
        "dense_attention and\n"
        "  dense_attention_grad together, if they are measured in the same run.\n\n"
        "Before a stage is timed, sampled rows of its result are checked against the reference\n"
        "backend.",
};

const std::vector<std::string> kStages{"select_blocks",
                                       "block_mass",
                                       "dense_attention",
                                       "dense_attention_grad",
                                       "index_scores",
                                       "index_select",
                                       "sparse_attention",
                                       "sparse_attention_grad",
                                       "index_kl",
                                       "index_kl_grad",
                                       "layer",
                                       "layer_grad"};
const std::vector<std::string> kCases{"square", "chunk", "short", "pack",
                                      "decode", "mixed", "top-k"};
const std::vector<std::string> kSelections{"structured", "fitted", "random"};
const std::vector<std::string> kSupports{"selected", "full"};
/// Those of the default, then one that is slow and runs where it is named alone.
const std::vector<LoopOrder> kOrders{LoopOrder::automatic, LoopOrder::tile_union,
                                     LoopOrder::kv_outer, LoopOrder::q_outer};
constexpr size_t kDefaultOrders = 3;

std::string any_name(const std::string& name) { return name; }

void add_sizes(OptionTable& table, BenchWords& w) {
    table
        .text("preset", "MODEL", w.preset,
              "sizes: a Hugging Face config.json, or " + join(list_models()))
        .offers(list_models());
    const auto size = [&](const char* flag, const char* form, std::optional<int64_t>& to,
                          const std::string& help) {
        table.count(flag, form, to, help, at_least(1));
    };
    size("query-heads", "N", w.query_heads, "Hq; default: the model's");
    size("kv-heads", "N", w.kv_heads, "Hkv, GQA groups; default: the model's");
    size("head-dim", "N", w.head_dim, "dh; default: the model's");
    size("index-dim", "N", w.index_dim,
         concat("didx; default: the model's, else ", kDefaultIndexDim));
    size("block-size", "TOKENS", w.block_size,
         "Bk; default: the model's or the indexer's, else 128");
    size("top-k", "BLOCKS", w.top_k, "k; default: the model's or the indexer's, else 16");
}

}  // namespace

OptionTable option_table(BenchOptions& o) {
    BenchWords& w = o.words;
    OptionTable table(kAbout);
    const auto names = [&](const char* flag, std::vector<std::string>& to,
                           const std::vector<std::string>& known, const std::string& help) {
        table.names(flag, "NAME,...", to, any_name, help).offers(known);
    };
    table.text("out", "FILE", o.out, "record to write, updated after every measurement")
        .unrecorded();
    table
        .text("backend", "NAME", o.backend,
              "cuda, cuda-unordered, cuda-sm80, cuda-sm86, cpu, cpu-avx2 or reference; default: "
              "cuda if it can start, else cpu. A record is of the whole machine, so there is no "
              "--threads: cpu has OMP_NUM_THREADS threads, else all")
        .offers(kBackends);
    table.path("input", "FILE", w.input, "activations whose layers are the cases");
    table.path("indexer", "FILE", w.indexer,
               "results.h5 of msa-fit-indexer, for index_q and index_k; default: those of --input");
    table.numbers("layers", "L,...", w.layers, "of --input; default: all with an Index Branch");
    names("stages", w.stages, kStages, join(kStages) + "; default: all");
    names("cases", w.cases, kCases, join(kCases) + ", see below; default: all");
    names("selection", w.selections, kSelections, join(kSelections) + "; default: all");
    names("support", w.supports, kSupports,
          "of index_kl and index_kl_grad: selected, full; default: both");
    names("order", w.orders, {"automatic", "union", "kv_outer", "q_outer"},
          "loop orders of sparse_attention and its gradient: automatic, union, kv_outer, q_outer; "
          "default: the first three");
    table.counts("tokens", "N,...", o.tokens,
                 "tokens of every case; default: each case's own, see below");
    table.counts("batch", "N,...", o.batches, "sequences of a decode step", between(1, 4096));
    add_sizes(table, w);
    table.element("element", w.element, {Element::bf16, Element::f16, Element::f32, Element::e4m3},
                  "type of operands and outputs: bf16, f16, f32, or e4m3 with a scale per row of q "
                  "and per block of k and v (only for sparse_attention and layer; outputs are then "
                  "bf16, on the cpu f32); default: bf16 on cuda, else f32");
    table
        .names("index-element", "TYPE,...", w.index_elements, any_name,
               "of index_q and index_k: bf16, f16, f32, e4m3, or int8 with a scale for each row of "
               "index_q and each block of index_k; default: as --element, on cuda e4m3 too")
        .offers({"bf16", "f16", "f32", "e4m3", "int8"});
    table.counts("pages", "N,...", o.page_sizes,
                 "also time forward stages with keys in pages of N tokens", at_least(1));
    table.count("capacity", "N", o.capacity,
                "with --pages: time graphs for up to N tokens, too (not squares, packs)");
    table.numbers(
        "devices", "N,...", o.devices,
        "GPUs that compute one layer together, compared with the first one alone (with --backend "
        "cpu, as many ranks): cases square and decode of one token, structured");
    table.count("samples", "N", o.samples,
                "timed samples per measurement; fewer if they take more than 10 s",
                between(1, 1000));
    table.seed(o.seed, "seed of operands and sampled rows");
    table.flag("overwrite", o.overwrite, "replace an existing record").unrecorded();
    table.flag("json", o.json, "print the record instead of the table").unrecorded();
    return table;
}

namespace {

/// Do both paths lead to one file that exists?
bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
    std::error_code none;
    return std::filesystem::equivalent(a, b, none);
}

/// The names of a list, all of them known; an empty one stands for all.
std::vector<std::string> known_list(const std::string& option,
                                    const std::vector<std::string>& names,
                                    const std::vector<std::string>& known) {
    for (const std::string& name : names) choice(option, name, known);
    return names.empty() ? known : names;
}

/// The one name that a list may have with --input.
std::string only_with_input(const std::string& option, const std::vector<std::string>& names,
                            const std::string& name) {
    require(names.empty() || (names.size() == 1 && names.front() == name), "--", option, " is '",
            join(names), "', must be ", name, " with --input");
    return name;
}

/// Opens --input, which excludes whatever else says what the cases are.
void read_captured(std::span<const std::string> args, BenchOptions& o) {
    const BenchWords& w = o.words;
    if (w.input.empty()) {
        for (const char* option : {"indexer", "layers"})
            require(!given(args, option), "--", option, " needs --input, a file of activations");
        return;
    }
    for (const char* option :
         {"tokens", "batch", "preset", "query-heads", "kv-heads", "head-dim", "index-dim"})
        require(!given(args, option), "--input brings its own sizes and excludes --", option);
    o.captured = std::make_shared<Captured>(w.input, w.indexer, w.layers);
}

void read_sizes(BenchOptions& o) {
    const BenchWords& w = o.words;
    Model model = read_model(w.preset);
    o.model = model.name;
    o.sizes = layer_sizes(model);
    if (o.captured) o.captured->take_sizes(o.sizes);
    const auto take = [&](const std::optional<int64_t>& value, int64_t& size) {
        if (!value) return;
        size = *value;
        o.model = "";  // sizes of one's own
    };
    take(w.query_heads, o.sizes.query_heads);
    take(w.kv_heads, o.sizes.kv_heads);
    take(w.head_dim, o.sizes.head_dim);
    take(w.index_dim, o.sizes.index_dim);
    take(w.block_size, o.sizes.block_size);
    take(w.top_k, o.sizes.top_k);
    if (o.captured) o.model = o.captured->file().info().model_id;
    o.sizes.element = w.element.value_or(o.on_gpu() ? Element::bf16 : Element::f32);
    const bool no_index = o.sizes.element == Element::e4m3 && !o.on_gpu();
    o.index_elements = {no_index ? Element::f32 : o.sizes.element};
    if (o.on_gpu() && o.sizes.element != Element::e4m3) o.index_elements.push_back(Element::e4m3);
    if (w.index_elements.empty()) return;
    o.index_elements.clear();
    for (const std::string& name : w.index_elements)
        o.index_elements.push_back(*element_option(
            "index-element", name,
            {Element::bf16, Element::f16, Element::f32, Element::e4m3, Element::int8}));
}

/// Sets the words to what is measured.
void resolve_words(BenchOptions& o) {
    BenchWords& w = o.words;
    w.stages = o.stages, w.cases = o.cases, w.selections = o.selections, w.supports = o.supports;
    if (o.captured) w.layers = o.captured->layers();
    const analysis::LayerSizes& s = o.sizes;
    w.query_heads = s.query_heads, w.kv_heads = s.kv_heads, w.head_dim = s.head_dim;
    w.index_dim = s.index_dim, w.block_size = s.block_size, w.top_k = s.top_k;
    w.element = s.element;
    w.index_elements.clear();
    for (Element element : o.index_elements) w.index_elements.emplace_back(to_string(element));
}

}  // namespace

bool BenchOptions::wants(const std::string& stage) const {
    return std::find(stages.begin(), stages.end(), stage) != stages.end();
}

bool BenchOptions::on_gpu() const { return backend.starts_with("cuda"); }

/// cuda where it can start, else cpu.
std::string default_backend() {
    for (const BackendInfo& info : list_backends())
        if (info.name == "cuda" && info.usable.yes) return info.name;
    return "cpu";
}

std::optional<BenchOptions> parse_bench_options(std::span<const std::string> args,
                                                std::ostream& out) {
    BenchOptions o;
    BenchWords& w = o.words;
    if (!option_table(o).parse(args, out)) return std::nullopt;
    if (o.backend.empty()) o.backend = default_backend();
    o.stages = known_list("stages", w.stages, kStages);
    if (!o.devices.empty()) {
        for (const char* option :
             {"input", "stages", "selection", "support", "order", "batch", "pages"})
            require(!given(args, option), "--devices times whole layers and excludes --", option);
        require(o.devices.size() >= 2, "--devices names ", o.devices.size(),
                " device, must name at least 2");
        o.cases = known_list("cases", w.cases, {"square", "decode"});
    } else if (w.input.empty()) {
        o.cases = known_list("cases", w.cases, kCases);
        o.selections = known_list("selection", w.selections, kSelections);
    } else {
        o.cases = {only_with_input("cases", w.cases, "captured")};
        o.selections = {only_with_input("selection", w.selections, "fitted")};
    }
    o.supports = known_list("support", w.supports, kSupports);
    std::vector<std::string> orders;
    for (LoopOrder order : kOrders) orders.emplace_back(to_string(order));
    if (w.orders.empty()) w.orders.assign(orders.begin(), orders.begin() + kDefaultOrders);
    for (const std::string& name : w.orders)
        o.orders.push_back(kOrders[choice("order", name, orders)]);
    read_captured(args, o);
    read_sizes(o);
    require(o.devices.empty() || o.sizes.element != Element::e4m3,
            "--element is 'e4m3', must be bf16, f16 or f32 with --devices");
    require(o.devices.empty() || o.index_elements.front() != Element::int8,
            "--index-element is 'int8', must be bf16, f16, f32 or e4m3 with --devices");
    for (Element element : o.index_elements)
        require(
            o.page_sizes.empty() || (o.sizes.element != Element::e4m3 && element != Element::int8),
            "--pages measures operands without scales, not --element e4m3 or --index-element "
            "int8");
    for (int64_t size : o.page_sizes)
        require(size % o.sizes.block_size == 0 || o.sizes.block_size % size == 0, "--pages is ",
                size, ", but blocks have ", o.sizes.block_size,
                " tokens; one must be a multiple of the other");
    require(o.capacity == 0 || (!o.page_sizes.empty() && o.on_gpu()),
            "--capacity is of lengths on a GPU and needs --pages and --backend cuda");
    // Two blocks, so that there is something to choose from.
    for (int64_t tokens : o.tokens) check_at_least("tokens", tokens, 2 * o.sizes.block_size);
    for (const std::filesystem::path& input : {w.input, w.indexer})
        require(o.out.empty() || input.empty() || !is_same_file(o.out, input), "--out is ", o.out,
                ", the file that is read as ", input.string(), "; choose another");
    require(o.out.empty() || o.overwrite || !std::filesystem::exists(o.out), o.out,
            " exists; --overwrite replaces it");
    resolve_words(o);
    return o;
}

}  // namespace msa::experiments::bench
