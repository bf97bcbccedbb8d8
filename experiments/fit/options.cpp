// SPDX-License-Identifier: MIT
#include "experiments/fit/options.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace msa::experiments::fit {
namespace {

const About kAbout{
    .name = "msa-fit-indexer",
    .question =
        "How good can an Index Branch get on my model? Trains one per layer with the KL loss, from "
        "activations alone.",
    .usage = "FILE... --out DIR [options]",
    .examples = {"msa-fit-indexer data/sample.h5 --out results/fit --block-size 32 --top-k 8 "
                 "--steps 200",
                 "msa-analyze results/fit/indexer.h5 --out results/fitted --block-size 32 "
                 "--top-k 8 --queries 1728:"},
    .writes =
        "DIR/results.h5 (group /fit: curves and weights), DIR/indexer.h5 (activations with the\n"
        "fitted index_q and index_k, stored as the input is, for msa-analyze --selector index) "
        "and\n"
        "DIR/summary.json; while it runs, DIR/checkpoint-L.h5 for --resume. See data/FORMAT.md.",
};

const std::vector<std::string> kNorms{"none", "rms"}, kSplits{"position", "sequence"},
    kStarts{"normal", "from-qk", "pca"}, kTeachers{"mean", "max"};

std::string range_text(const Range& range) { return text(range); }

void check_rate(const char* option, double value) {
    require(value >= 0, "--", option, " is ", value, ", must be at least 0");
}

void check(const FitOptions& o) {
    check_option("index-dim", o.index_dim, kMinHeadDim, kMaxHeadDim);
    check_option("block-size", o.block_size, kMinBlockSize, kMaxBlockSize);
    check_at_least("top-k", o.rule.top_k, 1);
    o.rule.validate();
    if (o.rotary_dim) check_option("rope-dim", *o.rotary_dim, 0, o.index_dim);
    require(o.rotary_dim.value_or(0) % 2 == 0, "--rope-dim is ", o.rotary_dim.value_or(0),
            ", must be even");
    require(o.rope_theta.value_or(1) > 0, "--rope-theta is ", o.rope_theta.value_or(1),
            ", must be positive");
    check_at_least("steps", o.steps, 1);
    check_option("warmup-steps", o.warmup_steps, 0, o.steps);
    check_at_least("queries-per-step", o.queries_per_step, 1);
    check_at_least("eval-every", o.eval_every, 1);
    check_at_least("eval-queries", o.eval_queries, 0);
    check_rate("lr", o.rate);
    check_rate("weight-decay", o.weight_decay);
    check_option("threads", o.backend_options.threads, 0, 4096);
    check_option("jobs", o.jobs, 1, 4096);
    require(!(o.resume && o.overwrite), "--resume and --overwrite exclude each other");
}

}  // namespace

std::optional<FitOptions> parse_fit_options(std::span<const std::string> args, std::ostream& out) {
    FitOptions o;
    std::vector<std::string> files;
    std::string directory, layers, element, norm, split, start, teacher;
    Count block_size{o.block_size}, top_k{o.rule.top_k}, steps{o.steps}, warmup{o.warmup_steps},
        queries{o.queries_per_step}, eval_queries{o.eval_queries}, seed;
    int64_t rotary_dim = 0;
    double rope_theta = 0;
    po::options_description d;
    d.add_options()  //
        ("input", po::value(&files)->value_name("FILE"),
         "activations to read, with x (positional, repeatable): all are one training set")  //
        ("out", po::value(&directory)->value_name("DIR"), "directory for the results")      //
        ("layers", po::value(&layers)->value_name("L,..."), "layers; default: all")         //
        ("index-dim", po::value(&o.index_dim)->default_value(o.index_dim)->value_name("N"),
         "didx, channels of an index head")  //
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
        ("norm", po::value(&norm)->default_value("none")->value_name("NORM"),
         "of every index head: none or rms")  //
        ("rope-dim", po::value(&rotary_dim)->value_name("N"),
         "channels of an index head that RoPE rotates, 0 for none; default: as the model's heads")
        //
        ("rope-theta", po::value(&rope_theta)->value_name("T"), "of RoPE; default: the model's")  //
        ("steps", po::value(&steps)->default_value(steps)->value_name("N"), "training steps")     //
        ("warmup-steps", po::value(&warmup)->default_value(warmup)->value_name("N"),
         "first steps, with the KL over all visible keys; the others take the selected blocks; 0: "
         "no warm-up, as many as --steps: warm-up alone")  //
        ("queries-per-step", po::value(&queries)->default_value(queries)->value_name("N"),
         "queries drawn in each step")  //
        ("split", po::value(&split)->default_value("position")->value_name("BY"),
         "what --train and --eval count: position (in every sequence) or sequence")  //
        ("train", po::value(&o.train)->value_name("A:B"),
         "queries to train on; default: the first three quarters of the longest sequence")  //
        ("eval", po::value(&o.held_out)->value_name("A:B"),
         "held-out queries; default: the rest")  //
        ("eval-every", po::value(&o.eval_every)->default_value(o.eval_every)->value_name("STEPS"),
         "steps between evaluations, which are checkpoints as well")  //
        ("eval-queries", po::value(&eval_queries)->default_value(eval_queries)->value_name("N"),
         "held-out queries to evaluate, evenly spread; 0: all")  //
        ("lr", po::value(&o.rate)->default_value(o.rate)->value_name("RATE"),
         "learning rate of AdamW at the start; falls to 0 along a cosine")  //
        ("weight-decay",
         po::value(&o.weight_decay)->default_value(o.weight_decay)->value_name("RATE"),
         "decoupled weight decay of AdamW")  //
        ("init",
         po::value(&start)
             ->default_value(kStarts[static_cast<size_t>(o.start)])
             ->value_name("START"),
         "first weights: normal (random), from-qk (the best low-rank fit of the group's mean q.k) "
         "or pca (that of k)")  //
        ("teacher", po::value(&teacher)->default_value("mean")->value_name("TEACHER"),
         "what the KL compares with, of the group's heads: the mean of their probabilities, or "
         "per key the max of them, scaled to sum to 1")  //
        ("backend", po::value(&o.backend)->default_value(o.backend)->value_name("NAME"),
         "reference, cpu, cuda")  //
        ("device", po::value(&o.backend_options.device)->default_value(0)->value_name("N"),
         "ordinal of the GPU that cuda uses")  //
        ("threads", po::value(&o.backend_options.threads)->default_value(0)->value_name("N"),
         "CPU threads; 0: all")  //
        ("element", po::value(&element)->value_name("TYPE"),
         "round q, k and v to f32, bf16 or f16; default: as the file stores them")  //
        ("jobs", po::value(&o.jobs)->default_value(o.jobs)->value_name("N"),
         "layers trained at once, each in memory and with its share of the threads")  //
        ("seed", po::value(&seed)->default_value(seed)->value_name("N"),
         "of the first weights and of the drawn queries")                                        //
        ("resume", po::bool_switch(&o.resume), "continue an unfinished run with these options")  //
        ("overwrite", po::bool_switch(&o.overwrite), "replace results that exist")               //
        ("json", po::bool_switch(&o.json), "print summary.json instead of the table");
    if (!parse_command_line(kAbout, d, "input", args, out)) return std::nullopt;

    require(!files.empty(), "no input: name an activations file; --help shows how");
    require(!directory.empty(), "no output: name a directory with --out");
    o.files.assign(files.begin(), files.end());
    o.out = directory;
    if (!layers.empty()) o.layers = layer_list(layers);
    if (given(args, "rope-dim")) o.rotary_dim = rotary_dim;
    if (given(args, "rope-theta")) o.rope_theta = rope_theta;
    o.block_size = block_size.value;
    o.rule.top_k = top_k.value;
    o.rms_norm = choice("norm", norm, kNorms) == 1;
    o.steps = steps.value;
    o.warmup_steps = given(args, "warmup-steps") ? warmup.value : std::min(warmup.value, o.steps);
    o.queries_per_step = queries.value;
    o.split = static_cast<SplitBy>(choice("split", split, kSplits));
    o.element.main =
        element_option("element", element, {Element::f32, Element::bf16, Element::f16});
    check_at_least("device", o.backend_options.device, 0);
    o.start = static_cast<Start>(choice("init", start, kStarts));
    o.teacher = static_cast<Teacher>(choice("teacher", teacher, kTeachers));
    o.eval_queries = eval_queries.value;
    check_at_least("seed", seed.value, 0);
    o.seed = static_cast<uint64_t>(seed.value);
    check(o);
    return o;
}

std::string FitOptions::teacher_name() const { return kTeachers[static_cast<size_t>(teacher)]; }

std::string FitOptions::identity() const {
    const auto number = [](const auto& value) {
        return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
    };
    std::vector<std::string> names;  // in order: sequences are numbered through
    for (const std::filesystem::path& file : files) names.push_back(file.filename().string());
    return nlohmann::ordered_json{
        {"files", names},
        {"layers", layers},
        {"index_dim", index_dim},
        {"block_size", block_size},
        {"top_k", rule.top_k},
        {"forced_local", rule.forced_local},
        {"forced_first", rule.forced_first},
        {"norm", kNorms[rms_norm ? 1 : 0]},
        {"rope_dim", number(rotary_dim)},
        {"rope_theta", number(rope_theta)},
        {"steps", steps},
        {"warmup_steps", warmup_steps},
        {"queries_per_step", queries_per_step},
        {"split", kSplits[static_cast<size_t>(split)]},
        {"train", range_text(train)},
        {"eval", range_text(held_out)},
        {"eval_every", eval_every},
        {"eval_queries", eval_queries},
        {"lr", rate},
        {"weight_decay", weight_decay},
        {"init", kStarts[static_cast<size_t>(start)]},
        {"teacher", teacher_name()},
        {"backend", backend},
        {"element", element.main ? to_string(*element.main) : "as stored"},
    }
        .dump();
}

}  // namespace msa::experiments::fit
