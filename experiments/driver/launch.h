// SPDX-License-Identifier: MIT
// What launchers tell a process by its environment: mpirun, srun, a job array of Slurm, GNU
// parallel.
#pragma once

#include <cstdint>

namespace msa::experiments {

/// The rank that mpirun or srun gave this process; 0 without them.
int64_t launched_rank();
/// Where this process begins among the units of a run: its rank, and its number in a job array of
/// Slurm or of GNU parallel. Processes without a number begin at the same unit.
int64_t launched_number();
/// Threads of this process: OMP_NUM_THREADS if set, else all processors, divided among the
/// processes that mpirun or srun started on this host.
int launched_threads();

}  // namespace msa::experiments
