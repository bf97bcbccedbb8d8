// SPDX-License-Identifier: MIT
// The runs of a sweep over workers: ranks of MPI, GPUs of --devices, or processes that share DIR
// and nothing else (--shard).
#pragma once

#include <functional>
#include <iosfwd>
#include <span>
#include <string>

#include "experiments/driver/ranks.h"
#include "experiments/pretrain/sweep.h"

namespace msa::experiments::pretrain {

/// Does one run, with all of `ranks`; its warnings and progress go to `err`.
using Train =
    std::function<void(std::span<const std::string> args, const Ranks& ranks, std::ostream& err)>;

/// Runs what is missing, each with `train`, resumed where it was stopped. A worker takes a chain
/// (sweep.h) at a time; part I of N has the chains I, I + N, ...; with --together all workers do
/// one run after the other. A run that diverges is a result: the rest goes on, and it is not tried
/// again. Other errors end the sweep. InputError where another process is at a run.
///
/// When all runs are there, whoever ended last writes sweep.json and one line of each to `out`:
/// {"format", "runs": [{"arm", "seed", "diverged_after" or those numbers of its summary.json that
/// do not hang on the machine's speed}]}, the same bytes for any number of workers. InputError
/// where a run is one of other options, inputs, element types or another commit. `args` are those
/// of the sweep.
void run_sweep(const PretrainOptions& options, std::span<const std::string> args,
               const Train& train, std::ostream& out, std::ostream& err);

}  // namespace msa::experiments::pretrain
