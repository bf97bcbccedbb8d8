// SPDX-License-Identifier: MIT
#include "experiments/pretrain/options.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "experiments/programs.h"

namespace msa::experiments::pretrain {
namespace {

const About kAbout{
    .program = kProgram,
    .does = "Trains a small transformer on text, with bytes as tokens.",
    .usage = "FILE... --out DIR [options]",
    .examples = {"msa-pretrain core/*.cpp core/cpu/*.cpp --out results/nano",
                 "msa-pretrain core/*.cpp core/cpu/*.cpp --out results/window --attention window "
                 "--steps 100"},
    .writes =
        "DIR/results.h5 (groups /train, /probe, /evaluation, /text, /retrieval),\n"
        "DIR/checkpoint.h5 (weights and the state of the optimizer, for --resume and "
        "--start-from),\n"
        "DIR/curves.csv, which grows while it runs, DIR/summary.json (tables, see there),\n"
        "DIR/tables/NAME.csv, DIR/pretrain.txt (what is printed) and, with --capture,\n"
        "DIR/activations.h5 for msa-analyze. See data/FORMAT.md.",
};

/// Above any model that is trained here; sizes below them multiply without overflow.
constexpr double kMostSize = 1 << 20, kMostLayers = 512, kMostSequences = 1 << 16,
                 kMostSteps = 1e12, kMostBeta = 0.999999;

const std::vector<std::string> kAttentions{"full", "msa", "window", "passive"};

void add_model(OptionTable& table, PretrainOptions& o) {
    train::ModelSizes& s = o.sizes;
    table.count("model-layers", "N", s.layers, "layers of the model", between(1, kMostLayers))
        .as("layers");
    table.count("model-dim", "N", s.model_dim, "D, width of the residual stream",
                between(1, kMostSize));
    table.count("hidden-dim", "N", s.hidden_dim,
                "width of the feed-forward part, SwiGLU; the paper's models have a mixture of "
                "experts there",
                at_least(1));
    table.count("query-heads", "N", s.query_heads, "Hq", between(1, kMostSize));
    table.count("kv-heads", "N", s.kv_heads, "Hkv, the GQA groups", between(1, kMostSize));
    table.count("head-dim", "N", s.head_dim, "dh", between(kMinHeadDim, kMaxHeadDim));
    table.count("rotary-dim", "N", s.rotary_dim, "channels of a head that RoPE rotates; 0: none",
                at_least(0));
    table.real("rope-theta", "T", s.rope_theta, "base of RoPE, also in the Index Branch");
    table.count("context", "TOKENS", o.context, "tokens of a training sequence",
                between(2, kMostSize));
    table
        .text("attention", "KIND[,KIND...]", o.attention,
              "what layers attend to: full (all visible keys), msa (the blocks that the Index "
              "Branch selects), window (the first block and the newest tokens, k Bk in all: "
              "app:prelim-swa) or passive (full, with an Index Branch that is trained but not "
              "used, as a control); one for all layers, or one per layer")
        .offers(kAttentions);
    add_sizes(table, o);
    table.flag("sink", o.sink,
               "a learnable sink: a logit per query head that takes part in its softmax and has no "
               "value (app:prelim-learnable-sink)");
}

void add_index_branch(OptionTable& table, PretrainOptions& o) {
    train::ModelSizes& s = o.sizes;
    table.count("index-dim", "N", s.index_dim, "didx, channels of an index head",
                between(kMinIndexDim, kMaxIndexDim));
    table.count("index-rotary", "N", s.index_rotary,
                "channels of an index head that RoPE rotates; 0: none", at_least(0));
    table.choice("index-norm", "NORM", s.index_norm, {"none", "rms"}, "norm of every index head");
    table.choice("signals", "SIGNALS", o.signals, {"lm", "kl", "both"},
                 "where the gradient of the index projections comes from: lm (the language model's "
                 "loss, through a value head of the Index Branch), kl (the KL loss, without a "
                 "value head), or both (app:prelim-grad-source)");
    table.real("kl-weight", "LAMBDA", o.kl_weight, "weight of the KL loss (eq:msa-kl)",
               at_least(0));
    table.choice("detach", "WHETHER", o.no_detach, {"on", "off"},
                 "cut the gradient of the KL loss from the index projections into the backbone: on "
                 "(eq:msa-detach) or off; the teacher is always detached");
    table.count("attach-from", "STEPS", o.training.attach_from,
                "with --detach off: in the first STEPS steps it is cut", at_least(0));
    table.count("attach-until", "STEPS", o.training.attach_until,
                "with --detach off: it is cut after STEPS steps; 0: never", at_least(0));
    table.choice("kl-teacher", "WHOSE", o.other_teacher, {"own", "other"},
                 "whose attention teaches the KL loss: the sequence's own, or, as a control, that "
                 "of the next sequence of the batch (other)");
    table.flag("freeze-index", o.training.freeze_index,
               "the Index Branch keeps its first weights, as a control");
    table.choice(
        "detach-lm", "WHETHER", o.detach_lm, {"off", "on"},
        "also cut the gradient of the language model's loss, which comes through the value head");
    table.choice("kl-support", "SUPPORT", o.kl_full_support, {"selected", "full"},
                 "support of the KL loss after the warm-up: the keys of the selected blocks, or "
                 "all visible keys");
    table
        .count("warmup-steps", "STEPS", o.training.warmup_steps,
               "indexer warm-up: first steps with full attention, and the KL loss over all visible "
               "keys (sec:method-training)",
               at_least(0))
        .shown_as(concat(o.training.warmup_steps, ", at most --steps"));
}

void add_training(OptionTable& table, PretrainOptions& o) {
    train::TrainingOptions& t = o.training;
    table.count("steps", "N", t.steps, "training steps", between(1, kMostSteps));
    table.count("sequences", "N", o.sequences, "sequences of a step", between(1, kMostSequences));
    table.real("lr", "RATE", t.lr, "peak learning rate of AdamW", at_least(0));
    table
        .count("lr-warmup", "STEPS", t.lr_warmup,
               "first steps, over which the learning rate rises linearly", at_least(0))
        .shown_as(concat(t.lr_warmup, ", at most --steps"));
    table.real("weight-decay", "RATE", t.adamw.weight_decay, "decoupled weight decay, of matrices",
               at_least(0));
    table.real("beta2", "B", t.adamw.beta2, "decay of AdamW's second moment",
               between(0, kMostBeta));
    table.real("clip", "NORM", t.clip.norm, "largest norm of a step's gradient; 0: no clipping",
               at_least(0));
    table.choice("clip-index", "HOW", t.clip.apart, {"together", "apart"},
                 "the gradient of the Index Branch is clipped by its own norm (apart), or with all "
                 "others by that of the whole gradient (together)");
    table
        .path("start-from", "FILE", o.start_from,
              "checkpoint.h5 of another run, whose weights this one starts from (continued "
              "pretraining); an Index Branch that it lacks starts fresh")
        .unrecorded();
    table.flag("fork", o.fork,
               "continue where the run of --start-from ended, with its step, moments and order of "
               "text; that run is a trunk with the same seed, text and --steps. Several arms "
               "forked from one trunk share its steps");
    table.count("until", "STEPS", o.until,
                "end after this many of the --steps, with unchanged learning rates: a trunk for "
                "--fork; 0: after all",
                at_least(0));
    table.seed(o.seed, "seed of the initial weights, and of the text and exercises of every step");
}

void add_text(OptionTable& table, PretrainOptions& o) {
    table
        .real("held-out-share", "SHARE", o.held_out, "share of the documents that are held out",
              between(0, 1))
        .as("held_out");
    table.paths(
        "held-out-text", "FILE...", o.held_out_files,
        "text to hold out, instead of a share: all files up to the next option; its documents are "
        "not trained on");
    table.choice("short-documents", "WHAT", o.reading.short_documents, {"leave-out", "pack"},
                 "documents that are no longer than the context: leave-out, or pack several into "
                 "a row");
    table.choice("begin", "WHERE", o.reading.from_start, {"anywhere", "document"},
                 "where sequences of text begin: anywhere in a document, or at its start");
    table.choice("bos", "WHETHER", o.reading.bos, {"off", "on"},
                 "put the byte 0, which no text contains, before every sequence, exercises too: a "
                 "separate first token for a sink");
    table
        .names(
            "tasks", "TASK,...", o.tasks,
            [](const std::string& name) {
                const std::vector<std::string> known(kTaskNames.begin(), kTaskNames.end());
                return known[choice("tasks", name, known)];
            },
            "exercises in retrieval, for training and for evaluation: needle, multi_key, tracking, "
            "recall, copy; default: all")
        .offers({kTaskNames.begin(), kTaskNames.end()});
    table.real("exercises", "SHARE", o.exercises,
               "share of the training sequences that carry an exercise, each task alike",
               between(0, 1));
    table.count("pairs", "N", o.task.pairs, "facts of multi_key and recall, chains of tracking",
                between(1, kMostSize));
    table.count("questions", "N", o.task.questions, "questions of recall", between(1, kMostSize));
    table.count("hops", "N", o.task.hops, "references of tracking", between(1, kMostSize));
}

void add_measuring(OptionTable& table, PretrainOptions& o) {
    const auto every = [&](const char* flag, int64_t& to, const std::string& what) -> OptionRow& {
        return table.count(flag, "STEPS", to, what, at_least(0));
    };
    table
        .count("log-every", "STEPS", o.log_every, "steps between entries of the training curves",
               at_least(1))
        .as("log");
    every("probe-every", o.probe_every,
          "steps between probes of every layer on a held-out sequence: recall, mass kept, "
          "entropies, sink mass; from step 0 on, and twenty times as often in the first STEPS "
          "steps; 0: only at the end")
        .as("probe");
    every("eval-every", o.evaluate_every,
          "steps between evaluations on held-out text and exercises; 0: only at the end")
        .as("evaluate");
    every("save-every", o.checkpoint_every, "steps between checkpoints; 0: only at the end")
        .unrecorded();
    table.count("eval-sequences", "N", o.eval_sequences, "held-out sequences of an evaluation",
                between(1, kMostSequences));
    table.count("eval-exercises", "N", o.eval_exercises,
                "exercises of every task and length; 0: none", at_least(0));
    table.counts("eval-lengths", "TOKENS,...", o.eval_lengths,
                 "lengths of exercises; default: the context", at_least(2));
    table
        .count("capture", "SEQUENCES", o.capture,
               "held-out sequences whose activations the trained model writes to "
               "DIR/activations.h5",
               between(0, kMostSequences))
        .unrecorded();
}

std::vector<train::Attention> attentions(const std::string& list) {
    std::vector<train::Attention> kinds;
    for (const std::string& name : split_list("attention", list))
        kinds.push_back(static_cast<train::Attention>(choice("attention", name, kAttentions)));
    return kinds;
}

/// What no row can check alone.
void check(const PretrainOptions& o) {
    require(!o.sweep.empty() || !o.together,
            "--together is for the runs of --sweep: a single run is trained by all its workers");
    require(o.sweep.empty() || o.together || o.devices.size() < 2, "--devices names ",
            o.devices.size(),
            " GPUs, must be one without --together: a process on each does other runs of --sweep");
    require(o.sweep.empty() || !o.overwrite,
            "--overwrite is not for a sweep, which runs what is missing");
    o.rule.validate();
    const train::ModelConfig model = o.model();
    model.validate();
    check_option("warmup-steps", o.training.warmup_steps, 0, o.training.steps);
    check_option("lr-warmup", o.training.lr_warmup, 0, o.training.steps);
    check_option("until", o.until, 0, o.training.steps);
    check_option("attach-from", o.training.attach_from, 0, o.training.steps);
    check_option("attach-until", o.training.attach_until, 0, o.training.steps);
    require(o.no_detach || (o.training.attach_from == 0 && o.training.attach_until == 0),
            "--attach-from and --attach-until are for --detach off");
    require(!o.other_teacher || model.msa.kl,
            "--kl-teacher is for a KL loss: --signals kl or both");
    require(!o.other_teacher || o.sequences > 1,
            "--kl-teacher other needs several --sequences in a step");
    require(!o.fork || !o.start_from.empty(), "--fork needs the trunk: --start-from FILE");
    o.training.validate();
    o.mixture().validate();
    const bool selects = model.has_index() || model.attends(train::Attention::window);
    require(!selects || o.rule.top_k * o.block_size <= o.context, "--top-k times --block-size is ",
            o.rule.top_k * o.block_size, ", must be at most the context of ", o.context,
            " tokens, or every query attends to everything");
    for (int64_t length : o.eval_lengths)
        require(length <= o.context, "--eval-lengths names ", length,
                ", must be at most the context of ", o.context, " tokens");
    o.evaluation().validate();
    require(!o.held_out_files.empty() || (o.held_out > 0 && o.held_out < 1), "--held-out-share is ",
            o.held_out, ", must be between 0 and 1, or --held-out-text name what is held out");
}

}  // namespace

std::vector<std::filesystem::path> PretrainOptions::inputs() const {
    std::vector<std::filesystem::path> all = files;
    all.insert(all.end(), held_out_files.begin(), held_out_files.end());
    if (!start_from.empty()) all.push_back(start_from);
    return all;
}

train::ModelConfig PretrainOptions::model() const {
    train::ModelConfig config;
    config.sizes = sizes;
    config.attention = attentions(attention);
    config.sizes.max_positions = context;
    config.msa = {.block_size = block_size,
                  .rule = rule,
                  .sink = sink,
                  .kl = signals != Signals::lm,
                  .kl_weight = kl_weight,
                  .value_head = signals != Signals::kl,
                  .detach = !no_detach,
                  .detach_lm = detach_lm,
                  .kl_full_support = kl_full_support,
                  .other_teacher = other_teacher};
    return config;
}

std::vector<Task> PretrainOptions::chosen_tasks() const {
    std::vector<Task> chosen;
    for (int n = 0; n < kTasks; ++n)
        if (tasks.empty() || std::find(tasks.begin(), tasks.end(),
                                       kTaskNames[static_cast<size_t>(n)]) != tasks.end())
            chosen.push_back(static_cast<Task>(n));
    return chosen;
}

Mixture PretrainOptions::mixture() const {
    Mixture mixture{.tasks = task};
    const std::vector<Task> chosen = chosen_tasks();
    for (Task one : chosen)
        mixture.shares[static_cast<size_t>(one)] = exercises / static_cast<double>(chosen.size());
    return mixture;
}

EvaluationOptions PretrainOptions::evaluation() const {
    EvaluationOptions e{.reading = reading,
                        .context = context,
                        .sequences = eval_sequences,
                        .task = task,
                        .lengths = eval_lengths,
                        .exercises = eval_exercises,
                        .batch_tokens = sequences * context,
                        .seed = kEvaluationSeed};
    if (eval_exercises > 0) e.tasks = chosen_tasks();
    if (e.lengths.empty()) e.lengths = {context};
    return e;
}

OptionTable option_table(PretrainOptions& o) {
    OptionTable table(kAbout);
    table
        .paths("input", "FILE", o.files,
               "text to train on (positional, repeatable); a byte 0 separates documents")
        .without_flag()
        .as("files")
        .required(
            "no input: name a text file to train on, ahead of --held-out-text; --help shows how");
    table.path("out", "DIR", o.out, "directory for the results")
        .unrecorded()
        .required("no output: name a directory with --out");
    table
        .text("preset", "NAME", o.preset,
              "sizes that other options start from: nano (seconds on a laptop), pilot (13.9M "
              "parameters, context 4096) or large (29M, context 8192); blocks are smaller than "
              "elsewhere, as contexts are shorter. The defaults below are those of nano")
        .offers({"nano", "pilot", "large"});
    add_model(table, o);
    add_index_branch(table, o);
    add_training(table, o);
    add_text(table, o);
    add_measuring(table, o);
    table
        .path(
            "sweep", "FILE", o.sweep,
            "several runs, from JSON: a list of seeds, arms (each a name and the list of words "
            "that it adds to this command line), and optionally words that all arms add. Does the "
            "missing runs in DIR/ARM/seed-S, and writes DIR/sweep.json when all are done. Start it "
            "as often as you like: each process does one run at a time")
        .unrecorded();
    table
        .flag("together", o.together,
              "the ranks of mpirun, or the GPUs of --devices, train each run of --sweep together, "
              "like a single run, instead of separate runs: for fewer runs than workers. See "
              "docs/many_machines.md")
        .unrecorded();
    add_backend(table, o);
    add_devices(table, o,
                "GPUs that train together, each on an equal share of a step's sequences; on the "
                "host, as many workers that share the threads. See docs/many_machines.md");
    add_resume(table, o);
    add_existing(table, o);
    return table;
}

std::optional<PretrainOptions> parse_pretrain_options(std::span<const std::string> args,
                                                      std::ostream& out) {
    PretrainOptions first = preset(kPresets[0]);  // to learn which preset is asked for
    if (!option_table(first).parse(args, out)) return std::nullopt;
    std::optional<PretrainOptions> o = preset(first.preset);
    PretrainOptions asked = *o;  // to learn the steps, which the warm-ups of a preset may exceed
    option_table(asked).parse(args, out);
    for (int64_t* warmup : {&o->training.warmup_steps, &o->training.lr_warmup})
        *warmup = std::min(*warmup, asked.training.steps);
    option_table(*o).parse(args, out);
    check(*o);
    return o;
}

}  // namespace msa::experiments::pretrain
