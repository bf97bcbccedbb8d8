// SPDX-License-Identifier: MIT
// The workers of a run that train together (core/train/workers.h): one for each rank of MPI, or for
// each GPU of --devices, or one.
#pragma once

#include <functional>

#include "core/train/workers.h"
#include "experiments/driver/ranks.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments {

/// Those of all processes, which `ranks` are.
int count_workers(const ComputeOptions&, const Ranks& ranks);

/// Does `work` for the workers of this process at the same time; throws the first error of any.
void work_together(const ComputeOptions&, const Ranks& ranks,
                   const std::function<void(train::Workers&)>& work);

/// Where a worker computes: its GPU, and its part of this process's threads.
BackendOptions backend_of(const ComputeOptions&, const train::Workers& worker);

}  // namespace msa::experiments
