// SPDX-License-Identifier: MIT
// Where a run stands, in a file of results of its own (data/FORMAT.md): /weights/<name>, and, to go
// on, /state/first/<name> and /state/second/<name>, the optimizer's moments, and the curves so far.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "core/io/results.h"
#include "core/train/model.h"
#include "experiments/pretrain/curve.h"

namespace msa::experiments::pretrain {

/// What a checkpoint has beside the model.
struct RunState {
    int64_t step = 0;    // steps done
    double seconds = 0;  // that they took
    double flops = 0;    // that they asked for (model_flops.h)
    std::vector<Curve> curves;
};

/// Replaced as a whole, so that a kill, or a full disk, leaves the one before.
class Checkpoint {
public:
    Checkpoint(std::filesystem::path path, io::RunRecord record)
        : path_(std::move(path)), record_(std::move(record)) {}

    const std::filesystem::path& path() const { return path_; }
    bool exists() const { return std::filesystem::exists(path_); }
    void save(train::Model& model, const RunState& state) const;
    /// Into the model and the state, whose curves have their columns. InputError naming the first
    /// difference when another run made the file, or it is damaged.
    void load(train::Model& model, RunState& state) const;
    /// Likewise of a trunk, the finished run of the checkpoint `from`, which this run forks from:
    /// `steps` and what the text of a step hangs on are this run's. Its new parameters start as
    /// train::continue_from has it. InputError naming the file where it is no trunk of this run.
    void fork(const std::filesystem::path& from, int64_t steps, train::Model& model,
              RunState& state) const;
    /// The steps that the file's weights have behind them.
    int64_t step() const;
    void remove() const;

private:
    std::filesystem::path path_;
    io::RunRecord record_;
};

/// The values that `list` starts from where the checkpoint `from` is continued
/// (train::continue_from); InputErrors name the file.
std::vector<float> start_values(const std::filesystem::path& from, const train::ParameterList& list,
                                uint64_t seed);

}  // namespace msa::experiments::pretrain
