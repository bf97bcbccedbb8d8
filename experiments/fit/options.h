// SPDX-License-Identifier: MIT
// The options of msa-fit-indexer, checked as far as possible without the files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/indexer/architecture.h"
#include "experiments/driver/presets.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments::fit {

/// The unit of --train and --eval.
enum class SplitBy : uint8_t { position, sequence, token };
/// The initial weights (experiments/fit/start.h).
enum class Start : uint8_t { normal, from_qk, pca };
/// Which of the model's RoPE pairs an index head has, where it has fewer.
enum class WhichPairs : uint8_t { energy, every_nth };

struct FitOptions : RunOptions, ComputeOptions, SizeOptions, OracleOptions {
    Architecture architecture = Architecture::msa;
    std::optional<int64_t> index_heads;  // default: one per group
    int64_t index_dim = kDefaultIndexDim;
    bool rms_norm = false;
    std::optional<int64_t> rotary_dim;  // default: the model's
    std::optional<double> rope_theta;   // default: the model's
    WhichPairs rope_pairs = WhichPairs::energy;
    int64_t steps = 1500;
    std::optional<int64_t> warmup_steps;  // default: 300, at most steps
    int64_t queries_per_step = 512;
    SplitBy split = SplitBy::position;
    std::vector<Range> train, held_out;
    double learning_rate = 1e-4;
    double weight_decay = 0.01;
    Start start = Start::from_qk;
    std::optional<Teacher> teacher;   // default: the architecture's
    int64_t every = 1;                // layers of the model that share an indexer,
    std::vector<std::string> groups;  // or the same as grouped() takes it
    bool taught_by_own = false;       // by its own layer alone
    bool keep_x = false;
    bool together = false;  // workers share each step's queries, not the layers
    int64_t eval_every = 100;
    int64_t eval_queries = 2048;

    std::string teacher_name() const;  // the value of --teacher
};

/// The layers of each indexer, ascending: the first one is its own, the others take its ids.
std::vector<std::vector<int64_t>> shared_layers(const FitOptions&);

/// The table of the options, bound to `o`.
OptionTable option_table(FitOptions& o);

/// Nothing if help or version was requested. Throws InputError.
std::optional<FitOptions> parse_fit_options(std::span<const std::string> args, std::ostream& out);

}  // namespace msa::experiments::fit
