// SPDX-License-Identifier: MIT
// A sweep: several arms, each with several seeds.
//
//   {"words": ["--steps", "2000"],
//    "seeds": [1, 2, 3],
//    "arms": {"full": ["--attention", "full"], "msa": [], "window": ["--attention", "window"]}}
//
// An arm is a list of command-line words, in which {seed} stands for the seed and {out} for DIR.
// Every run also has the words of the sweep's own command line and the file's optional "words",
// except for options that the arm gives. The run of an arm and a seed is DIR/<arm>/seed-<seed>. An
// arm may read the files of an earlier one: --start-from {out}/<arm>/seed-{seed}/checkpoint.h5.
#pragma once

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "experiments/driver/ranks.h"
#include "experiments/pretrain/options.h"

namespace msa::experiments::pretrain {

struct Sweep {
    std::vector<std::string> words{};  // of all arms
    std::vector<uint64_t> seeds;
    std::vector<std::pair<std::string, std::vector<std::string>>> arms;  // in the file's order
};

/// InputError naming the file and the rule that its text breaks.
Sweep read_sweep(const std::filesystem::path& file);

/// The run of an arm and a seed.
struct SweepRun {
    std::string arm;
    uint64_t seed = 0;
    std::filesystem::path folder;
    std::vector<std::string> words{};  // its command line
    PretrainOptions options{};         // the parsed words
    std::vector<size_t> reads{};       // numbers of earlier runs whose files are its inputs

    std::string name() const { return arm + ", seed " + std::to_string(seed); }
};

/// All runs, seed by seed, in the order of the arms. `args` are those of the sweep, `o` the parsed
/// options. InputError naming an arm whose words are not a valid command line of one run, or that
/// reads files of a run that does not come before it.
std::vector<SweepRun> runs_of(const Sweep& sweep, const PretrainOptions& o,
                              std::span<const std::string> args);

/// Does one run on all of `ranks`; warnings and progress go to `err`.
using Train =
    std::function<void(std::span<const std::string> args, const Ranks& ranks, std::ostream& err)>;

/// Does the missing runs with `train`, one at a time, and resumes stopped ones, until all are done
/// by this process or by others of the same sweep: a process claims its run (core/io/claim.h) in
/// the run's folder. A run that reads another's files begins when that is done. With --together all
/// workers do one run after the other. A run that diverges is a result: the sweep continues, and
/// the run is not repeated. Other errors end this process.
///
/// When all runs are done, each process writes sweep.json and prints it: a report as summary.json
/// is one, of what does not depend on the machine's speed. The bytes are the same for any number of
/// processes. InputError if a run has other options, inputs, element types or another commit.
/// `args` are those of the sweep.
void run_sweep(const PretrainOptions& options, std::span<const std::string> args,
               const Train& train, std::ostream& out, std::ostream& err);

}  // namespace msa::experiments::pretrain
