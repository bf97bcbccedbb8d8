// SPDX-License-Identifier: MIT
// The state of a run in a separate file of results (data/FORMAT.md): /weights/<name>; for resuming
// /state/first/<name> and /state/second/<name>, the optimizer's moments; and the curves so far.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "core/io/results.h"
#include "core/train/model.h"
#include "experiments/pretrain/curve.h"

namespace msa::experiments::pretrain {

/// The state in a checkpoint other than the model.
struct RunState {
    int64_t step = 0;    // steps done
    double seconds = 0;  // time of these steps
    double flops = 0;    // of these steps (model_flops.h)
    std::vector<Curve> curves;
};

/// Replaced atomically, so a kill or a full disk leaves the previous one.
class Checkpoint {
public:
    Checkpoint(std::filesystem::path path, io::RunRecord record)
        : path_(std::move(path)), record_(std::move(record)) {}

    const std::filesystem::path& path() const { return path_; }
    bool exists() const { return std::filesystem::exists(path_); }
    void save(train::Model& model, const RunState& state) const;
    /// Loads the model and the state, whose curves already have their columns. InputError naming
    /// the first difference if another run wrote the file, or if it is damaged.
    void load(train::Model& model, RunState& state) const;
    /// The same from a trunk: the finished run with the checkpoint `from`, from which this run
    /// forks. It must have this run's `steps` and the same text for each step. New parameters start
    /// as in train::continue_from. InputError naming the file if it is not a trunk of this run.
    void fork(const std::filesystem::path& from, int64_t steps, train::Model& model,
              RunState& state) const;
    /// The number of steps that the file's weights have been trained.
    int64_t step() const;
    void remove() const;

private:
    std::filesystem::path path_;
    io::RunRecord record_;
};

/// Initial values of `list` when continuing the checkpoint `from` (train::continue_from);
/// InputErrors name the file.
std::vector<float> start_values(const std::filesystem::path& from, const train::ParameterList& list,
                                uint64_t seed);

}  // namespace msa::experiments::pretrain
