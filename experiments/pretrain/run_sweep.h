// SPDX-License-Identifier: MIT
// Spreads the runs of a sweep over workers: MPI ranks, GPUs of --devices, or processes that share
// only DIR (--shard).
#pragma once

#include <functional>
#include <iosfwd>
#include <span>
#include <string>

#include "experiments/driver/ranks.h"
#include "experiments/pretrain/sweep.h"

namespace msa::experiments::pretrain {

/// Does one run on all of `ranks`; warnings and progress go to `err`.
using Train =
    std::function<void(std::span<const std::string> args, const Ranks& ranks, std::ostream& err)>;

/// Does the missing runs with `train`, and resumes stopped ones. A worker takes one chain (sweep.h)
/// at a time; part I of N has the chains I, I + N, .... With --together all workers do one run
/// after the other. A run that diverges is a result: the sweep continues, and the run is not
/// repeated. Other errors end the sweep. InputError if another process is doing a run.
///
/// When all runs are done, the process that ends last writes sweep.json, and one line per run to
/// `out`: {"format", "runs": [{"arm", "seed", "diverged_after" or the numbers of its summary.json
/// that do not depend on the machine's speed}]}. The bytes are the same for any number of workers.
/// InputError if a run has other options, inputs, element types or another commit. `args` are those
/// of the sweep.
void run_sweep(const PretrainOptions& options, std::span<const std::string> args,
               const Train& train, std::ostream& out, std::ostream& err);

}  // namespace msa::experiments::pretrain
