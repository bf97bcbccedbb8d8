// SPDX-License-Identifier: MIT
#include "experiments/fit/options.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "experiments/driver/full_layers.h"
#include "experiments/driver/layer_pattern.h"
#include "experiments/fit/architecture.h"
#include "experiments/programs.h"
#include "experiments/report/text.h"

namespace msa::experiments::fit {
namespace {

const About kAbout{
    .program = kProgram,
    .does = "Trains one per layer with the KL loss, from activations alone.",
    .usage = "FILE... --out DIR [options]",
    .examples = {"msa-fit-indexer data/sample.h5 --out results/fit --block-size 32 --top-k 8 "
                 "--steps 200",
                 "msa-analyze results/fit/indexer.h5 --out results/fitted --held-out "
                 "results/fit/results.h5"},
    .writes =
        "DIR/results.h5 (group /fit: curves and weights), DIR/indexer.h5 (activations with the\n"
        "operands of the fitted indexer in the input's element type, for msa-analyze --selectors\n"
        "index, dsa, seerattention or qsa), DIR/fit.txt, DIR/summary.json\n"
        "and DIR/tables; while it runs, DIR/checkpoint-L.h5, where a stopped fit continues. See "
        "data/FORMAT.md.",
};

const std::vector<std::string> kTeachers{"mean", "max"};

constexpr int64_t kWarmupSteps = 300;

void add_index_branch(OptionTable& table, FitOptions& o) {
    std::vector<std::string> names;
    std::string does;
    for (size_t n = 0; n < std::size(kArchitectures); ++n) {
        names.emplace_back(kArchitectures[n].name);
        add_item(does, ", ", names.back(), " (", fitted(static_cast<Architecture>(n)).does, ")");
    }
    table.choice("architecture", "NAME", o.architecture, names, "indexer to fit: " + does);
    table.count("index-heads", "N", o.index_heads,
                "index heads of --architecture dsa or qsa; default: one per group, with which dsa "
                "costs as much as msa, and qsa a quarter",
                at_least(1));
    table.count(
        "index-dim", "N", o.index_dim,
        "didx, channels of an index head, with which its cost grows: 64 is half of MiniMax-M3's, "
        "and what msa-cost and msa-bench take where a model says none. Below the head dim of "
        "the model, the start has a part of the RoPE pairs alone: where it or the fit keeps "
        "less than mean keys do, the head dim is what to try first",
        between(kMinIndexDim, kMaxIndexDim));
    add_sizes(table, o);
    table.count("every", "N", o.every,
                "a layer gets an indexer of its own every N layers of the model, and the layers "
                "between take its ids: the pattern F S S S of IndexShare is --every 4",
                at_least(1));
    add_groups(table, o.groups,
               "likewise: layers A to B share the indexer of A; layers in no group have their own");
    table
        .choice("index-norm", "NORM", o.rms_norm, {"none", "rms"},
                "of every index head: none, or rms, which MiniMax-M3 has and msalab convert asks "
                "for. Of normed heads the logits are bounded, so that a peaked teacher is out of "
                "reach: the KL may be several times as high at like recall and mass")
        .as("norm");
    table
        .count("index-rotary", "N", o.rotary_dim,
               "channels of an index head that RoPE rotates, 0 for none; default: as in the "
               "model's heads")
        .as("rope_dim");
    table.real("rope-theta", "T", o.rope_theta, "of RoPE; default: the model's");
    table.choice("rope-pairs", "WHICH", o.rope_pairs, {"energy", "every-nth"},
                 "where an index head has fewer RoPE pairs than the model's heads: those of most "
                 "energy, rms of the group's mean query times rms of its key, or every nth, whose "
                 "frequencies are those of a theta, as msalab convert needs them");
}

void add_training(OptionTable& table, FitOptions& o) {
    table.count("steps", "N", o.steps,
                "training steps; 0: none, the first weights as --init makes them. The weights of "
                "the evaluation that keeps most mass are what is written, be it the first one",
                at_least(0));
    table
        .count("warmup-steps", "N", o.warmup_steps,
               "first steps, with the KL over all visible keys; later steps use the selected "
               "blocks; 0: no warm-up; equal to --steps: only warm-up")
        .shown_as(concat(kWarmupSteps, ", at most --steps; of seerattention as many as --steps"));
    table.count("queries-per-step", "N", o.queries_per_step, "queries drawn in each step",
                at_least(1));
    table.choice("split", "BY", o.split, {"position", "sequence", "token"},
                 "unit of --train and --eval: position (in every sequence), sequence, or token "
                 "(packed, as in --queries of msa-analyze)");
    table.ranges("train", o.train,
                 "queries to train on; default: the first three quarters of the longest sequence");
    table.ranges("eval", o.held_out, "held-out queries; default: the rest");
    table.count("eval-every", "STEPS", o.eval_every,
                "steps between evaluations, which also write checkpoints", at_least(1));
    table.count("eval-queries", "N", o.eval_queries,
                "held-out queries to evaluate, evenly spread; 0: all", at_least(0));
    table.real("lr", "RATE", o.learning_rate,
               "learning rate of AdamW at the start; falls to 0 along a cosine", at_least(0));
    table.real("weight-decay", "RATE", o.weight_decay, "decoupled weight decay of AdamW",
               at_least(0));
    table.choice("init", "START", o.start, {"normal", "from-qk", "pca"},
                 "initial weights: normal (random), from-qk (the best low-rank fit of the group's "
                 "mean q.k) or pca (that of k)");
    table
        .choice("teacher", "TEACHER", o.teacher, kTeachers,
                "teacher of the KL, from the group's heads: the mean of their probabilities, or "
                "their max per key, scaled to sum to 1. For seerattention it is per block: mean "
                "sums over its tokens, max takes the largest. For qsa it "
                "is per 4 tokens: the sum over them")
        .shown_as("mean; of seerattention max");
    table.choice(
        "taught-by", "LAYERS", o.taught_by_own, {"all", "own"},
        "whose attention teaches an indexer that layers share: that of all of them, by the "
        "mean of their KLs (IndexCache), or of its own layer alone. Held-out measures are "
        "means over all of them either way");
    table.flag("keep-x", o.keep_x,
               "keep x in indexer.h5, so that another architecture can be fitted to it");
}

/// What no row can check alone.
void check(const FitOptions& o) {
    o.rule.validate();
    if (o.rotary_dim) check_option("index-rotary", *o.rotary_dim, 0, o.index_dim);
    require(o.rotary_dim.value_or(0) % 2 == 0, "--index-rotary is ", o.rotary_dim.value_or(0),
            ", must be even");
    require(o.rope_theta.value_or(1) > 0, "--rope-theta is ", o.rope_theta.value_or(1),
            ", must be positive");
    const FitArchitecture& of = fitted(o.architecture);
    const char* const name = traits_of(o.architecture).name;
    require(!o.index_heads || of.any_heads, "--index-heads is ", o.index_heads.value_or(0),
            ", which --architecture ", name, " lacks: it has one head per group");
    require(!of.one_teacher || *o.teacher == of.teacher, "--teacher is ", o.teacher_name(),
            ", must be ", kTeachers[static_cast<size_t>(of.teacher)], " with --architecture ",
            name);
    require(o.groups.empty() || o.every == 1, "--every and --groups exclude each other");
    check_option("warmup-steps", *o.warmup_steps, 0, o.steps);
    require(o.together || o.devices.size() < 2, "--devices names ", o.devices.size(),
            " GPUs, must be one without --together: a process on each fits other layers");
}

}  // namespace

OptionTable option_table(FitOptions& o) {
    OptionTable table(kAbout);
    add_files(table, o, ", with x (seerattention without, too)");
    table.numbers("layers", "L,...", o.layers, kFullLayersHelp);
    add_index_branch(table, o);
    add_training(table, o);
    add_oracle(table, o);
    add_compute(table, o);
    add_devices(table, o,
                "GPUs that train each layer together, with --together; on the host, this many "
                "workers that share the threads. See docs/many_machines.md");
    table
        .flag(
            "together", o.together,
            "the ranks of mpirun, or the GPUs of --devices, train each layer together, each on an "
            "equal share of a step's queries, instead of separate layers: for fewer layers than "
            "workers. The curve is that of one worker up to rounding. See docs/many_machines.md")
        .unrecorded();
    table.seed(o.seed, "seed of the initial weights and of the drawn queries");
    add_existing(table, o);
    return table;
}

std::optional<FitOptions> parse_fit_options(std::span<const std::string> args, std::ostream& out) {
    std::optional<FitOptions> o(std::in_place);
    if (!option_table(*o).parse(args, out)) return std::nullopt;
    const FitArchitecture& of = fitted(o->architecture);
    if (!o->warmup_steps)
        o->warmup_steps = of.warms_up ? o->steps : std::min(kWarmupSteps, o->steps);
    if (!o->teacher) o->teacher = of.teacher;
    check(*o);
    return o;
}

std::vector<std::vector<int64_t>> shared_layers(const FitOptions& o) {
    const LayerPattern pattern =
        o.groups.empty() ? every(o.layers, o.every) : grouped(o.layers, o.groups);
    std::vector<std::vector<int64_t>> of;
    for (size_t t = 0; t < pattern.size(); ++t) {
        if (pattern[t]) of.emplace_back();
        of.back().push_back(o.layers[t]);
    }
    return of;
}

std::string FitOptions::teacher_name() const { return kTeachers[static_cast<size_t>(*teacher)]; }

}  // namespace msa::experiments::fit
