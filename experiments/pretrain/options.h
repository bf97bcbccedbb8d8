// SPDX-License-Identifier: MIT
// The options of msa-pretrain, checked as far as possible without the files.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/train/trainer.h"
#include "experiments/driver/run_options.h"
#include "experiments/pretrain/evaluate.h"

namespace msa::experiments::pretrain {

/// Where the gradient of the index projections comes from (app:prelim-grad-source).
enum class Signals : uint8_t { lm, kl, both };

/// Seed of evaluations and probes: the same for every seed of a run, so sampling of text does not
/// add to the variance over seeds.
inline constexpr uint64_t kEvaluationSeed = 0;

struct PretrainOptions : RunOptions, ComputeOptions, SizeOptions {
    std::string preset;
    std::vector<std::filesystem::path> files;
    double held_out = 0.05;  // share of the documents
    std::vector<std::filesystem::path> held_out_files;
    Reading reading;

    train::ModelSizes sizes;
    std::string attention = "msa";  // the value of --attention
    int64_t context = 0, sequences = 0;
    Signals signals = Signals::kl;
    double kl_weight = 1;
    bool no_detach = false, detach_lm = false, kl_full_support = false, sink = false,
         other_teacher = false;

    train::TrainingOptions training;
    int64_t until = 0;  // 0: steps
    std::filesystem::path start_from, sweep;
    bool fork = false;
    bool together = false;  // all workers train each run of the sweep together

    std::vector<std::string> tasks;  // empty: all
    double exercises = 0.3;          // share of the sequences
    TaskOptions task;

    int64_t log_every = 10, probe_every = 0, evaluate_every = 0, checkpoint_every = 0;
    int64_t eval_sequences = 0, eval_exercises = 0;
    std::vector<int64_t> eval_lengths;  // empty: the context
    int64_t capture = 0;                // held-out sequences

    /// All files that decide the results.
    std::vector<std::filesystem::path> inputs() const;
    /// Steps done at the end of the run.
    int64_t end() const { return until > 0 ? until : training.steps; }
    train::ModelConfig model() const;
    Mixture mixture() const;
    std::vector<Task> chosen_tasks() const;
    EvaluationOptions evaluation() const;
};

/// The table of the options, bound to `o`.
OptionTable option_table(PretrainOptions& o);

/// Nothing if help or version was requested. Throws InputError.
std::optional<PretrainOptions> parse_pretrain_options(std::span<const std::string> args,
                                                      std::ostream& out);

/// Ordered by size.
inline constexpr const char* kPresets[] = {"nano", "pilot", "large"};

/// The defaults of a preset. InputError naming all presets if there is none of that name.
PretrainOptions preset(const std::string& name);

}  // namespace msa::experiments::pretrain
