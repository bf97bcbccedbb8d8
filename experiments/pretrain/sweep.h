// SPDX-License-Identifier: MIT
// Several runs that differ in named choices, each with several seeds.
//
//   {"seeds": [1, 2, 3],
//    "arms": {"full": ["--attention", "full"], "msa": [], "window": ["--attention", "window"]}}
//
// An arm is a list of words of a command line, in which {seed} stands for the seed and {out} for
// DIR. All runs have the other words of the sweep's own command line too, but for options that the
// arm gives. The run of an arm and a seed is DIR/<arm>/seed-<seed>; an arm may start from the
// checkpoint of one before it.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "experiments/driver/program.h"
#include "experiments/pretrain/options.h"

namespace msa::experiments::pretrain {

struct Sweep {
    std::vector<uint64_t> seeds;
    std::vector<std::pair<std::string, std::vector<std::string>>> arms;  // in the file's order
};

/// InputError naming the file and the rule that its text breaks.
Sweep read_sweep(const std::filesystem::path& file);

/// Runs what is missing, seed by seed, each with `train`, resumed where it was stopped, and writes
/// sweep.json: {"format", "runs": [{"arm", "seed", "diverged_after" or the numbers of its
/// summary.json}]}. A run that diverges is a result: the rest goes on, and it is not tried again.
/// Other errors end the sweep. `args` are those of the sweep.
void run_sweep(const PretrainOptions& options, std::span<const std::string> args, Run train,
               std::ostream& out, std::ostream& err);

}  // namespace msa::experiments::pretrain
