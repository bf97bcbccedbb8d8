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
    std::vector<std::string> words{};  // its command line, without a worker's GPU and threads
    PretrainOptions options{};         // the parsed words
    std::vector<size_t> reads{};       // numbers of earlier runs whose files are its inputs

    std::string name() const { return arm + ", seed " + std::to_string(seed); }
    /// Its words with the GPU and the threads of a worker; threads that the arm itself sets are
    /// kept.
    std::vector<std::string> words_on(const BackendOptions& worker) const;
};

/// All runs, seed by seed, in the order of the arms. `args` are those of the sweep, `o` the parsed
/// options. InputError naming an arm whose words are not a valid command line of one run, or that
/// reads files of a run that does not come before it.
std::vector<SweepRun> runs_of(const Sweep& sweep, const PretrainOptions& o,
                              std::span<const std::string> args);

/// Numbers of the runs, ascending, grouped into chains: runs that read each other's files. One
/// worker does a chain, one run after the other.
std::vector<std::vector<size_t>> chains_of(const std::vector<SweepRun>& runs);

// Spreads the runs of a sweep over workers: MPI ranks, GPUs of --devices, or processes that share
// only DIR (--shard).

/// Does one run on all of `ranks`; warnings and progress go to `err`.
using Train =
    std::function<void(std::span<const std::string> args, const Ranks& ranks, std::ostream& err)>;

/// Does the missing runs with `train`, and resumes stopped ones. A worker takes one chain (sweep.h)
/// at a time; part I of N has the chains I, I + N, .... With --together all workers do one run
/// after the other. A run that diverges is a result: the sweep continues, and the run is not
/// repeated. Other errors end the sweep. InputError if another process is doing a run.
///
/// When all runs are done, the process that ends last writes sweep.json, and one line per run to
/// `out`: {"format", "runs": [{"arm", "seed", "diverged_after" or the numbers and tables of its
/// summary.json that do not depend on the machine's speed}]}. The bytes are the same for any number
/// of workers. InputError if a run has other options, inputs, element types or another commit.
/// `args` are those of the sweep.
void run_sweep(const PretrainOptions& options, std::span<const std::string> args,
               const Train& train, std::ostream& out, std::ostream& err);

}  // namespace msa::experiments::pretrain
