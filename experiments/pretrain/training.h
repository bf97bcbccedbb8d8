// SPDX-License-Identifier: MIT
// A training run from its first step, or from a checkpoint, to its last.
#pragma once

#include <filesystem>
#include <fstream>
#include <iosfwd>

#include "core/error.h"
#include "experiments/pretrain/checkpoint.h"
#include "experiments/pretrain/model_flops.h"
#include "experiments/pretrain/options.h"
#include "experiments/pretrain/probe.h"

namespace msa::experiments::pretrain {

/// The loss of a step, or its gradient, is not finite.
class Diverged : public InputError {
public:
    Diverged(const std::string& message, int64_t step) : InputError(message), step_(step) {}
    int64_t step() const { return step_; }  // steps done before

private:
    int64_t step_;
};

/// A worker's share of the sequences of every step.
class TrainingBatches {
public:
    /// InputError if the text does not fit the options.
    TrainingBatches(const PretrainOptions& options, const Text& text,
                    const parallel::Group& workers);
    Sequences at(int64_t step) const { return all_.at(step, first_, share_); }

private:
    int64_t share_, first_;
    Batches all_;
};

/// Runs on the first of `workers`.
class Training {
public:
    /// All arguments must outlive this. InputError if the text does not fit the options.
    Training(const PretrainOptions& options, const Text& text, train::Model& model,
             const parallel::Group& workers, const Checkpoint& checkpoint,
             const std::filesystem::path& csv, std::ostream& err);

    /// Loads the checkpoint, if there is one.
    void resume();
    /// Loads the trunk of --start-from.
    void fork();
    /// Runs the remaining steps, with the checkpoints, probes and evaluations of the options, and
    /// one of each at the end. Throws Interrupted after a checkpoint if a stop is requested. Throws
    /// Diverged naming the step if a loss or gradient is not finite; the checkpoint is then the
    /// last one with finite losses.
    void run();

    /// Writes the datasets of the curves and of the last evaluation to the current unit.
    void write(io::UnitWriter& to) const;

private:
    void go_on();
    void step();
    void save();
    void log(const train::StepReport& report);
    void count_flops(const PackedBatch& layout);
    std::string earlier_rates() const;
    void print_rate(int64_t step, const char* name, double value);
    void look();
    void judge();
    void record(size_t curve, std::vector<double> row);
    bool due(int64_t every) const;
    bool probe_due() const;
    std::string kept() const;  // which weights
    [[noreturn]] void diverged(int64_t step, const std::string& what) const;

    enum CurveNumber : size_t { kTrain, kProbe, kEvaluation };

    const PretrainOptions& o_;
    train::Model& model_;
    const parallel::Group& workers_;
    const Checkpoint& checkpoint_;
    train::Trainer trainer_;
    TrainingBatches batches_;
    Batches held_out_;
    const Text& text_;
    RunState state_;
    Evaluation last_;
    Probe last_look_;
    Peak peak_;  // of all workers' GPUs
    struct {
        PackedBatch layout;
        bool sparse = false;
        double flops = 0;
    } counted_;  // the last kind of step
    std::filesystem::path csv_path_;
    std::ofstream csv_;
    std::ostream& err_;
    int64_t logged_ = 0;  // steps at the last entry of the log
    double logged_seconds_ = 0, logged_flops_ = 0;
};

}  // namespace msa::experiments::pretrain
