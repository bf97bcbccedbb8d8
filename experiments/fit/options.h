// SPDX-License-Identifier: MIT
// The options of msa-fit-indexer, checked as far as that goes without the files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/registry.h"
#include "core/selection.h"
#include "experiments/driver/operands.h"
#include "experiments/driver/options.h"

namespace msa::experiments::fit {

/// What --train and --eval count.
enum class SplitBy : uint8_t { position, sequence };
/// Where the weights begin (experiments/fit/start.h).
enum class Start : uint8_t { normal, from_qk, pca };

struct FitOptions {
    std::vector<std::filesystem::path> files;
    std::filesystem::path out;
    std::vector<int64_t> layers;  // empty: all
    int64_t index_dim = 64;
    int64_t block_size = 64;
    SelectionRule rule;
    bool rms_norm = false;
    std::optional<int64_t> rotary_dim;  // default: the model's
    std::optional<double> rope_theta;   // default: the model's
    int64_t steps = 1500;
    int64_t warmup_steps = 300;
    int64_t queries_per_step = 512;
    SplitBy split = SplitBy::position;
    Range train, held_out;
    double rate = 1e-4;
    double weight_decay = 0.01;
    Start start = Start::from_qk;
    Teacher teacher = Teacher::mean;
    int64_t eval_every = 100;
    int64_t eval_queries = 2048;
    std::string backend = "cpu";
    BackendOptions backend_options;
    ElementChoice element;  // of q, k and v; the Index Branch is trained in float
    int64_t jobs = 1;  // layers at once
    bool resume = false, overwrite = false, json = false;
    uint64_t seed = 0;

    std::string teacher_name() const;  // as --teacher has it
    /// What decides the results, as JSON text: recorded, and compared by --resume.
    std::string identity() const;
};

/// Nothing when help or version was asked for. Throws InputError.
std::optional<FitOptions> parse_fit_options(std::span<const std::string> args, std::ostream& out);

}  // namespace msa::experiments::fit
