// SPDX-License-Identifier: MIT
// The workers of a run that train together (core/parallel/group.h): one for each rank of MPI, or
// for each GPU of --devices, or one.
#pragma once

#include <functional>

#include "core/parallel/group.h"
#include "experiments/driver/ranks.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments {

/// Those of all processes, which `ranks` are.
int count_workers(const ComputeOptions&, const Ranks& ranks);

/// Does `work` for the workers of this process at the same time; throws the first error of any.
void run_group(const ComputeOptions&, const Ranks& ranks,
               const std::function<void(const parallel::Group&)>& work);

/// Where a worker computes: its GPU, and its part of this process's threads.
BackendOptions backend_of(const ComputeOptions&, const parallel::Group& worker);

}  // namespace msa::experiments
