// SPDX-License-Identifier: MIT
// The workers that train together (core/parallel/group.h): one per MPI rank, or one per GPU of
// --devices, or just one.
#pragma once

#include <functional>

#include "core/backend.h"
#include "core/parallel/group.h"
#include "experiments/driver/ranks.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments {

/// Number of workers of all processes `ranks`.
int count_workers(const ComputeOptions&, const Ranks& ranks);

/// Runs `work` for the workers of this process at the same time; throws the first error.
void run_group(const ComputeOptions&, const Ranks& ranks,
               const std::function<void(const parallel::Group&)>& work);

/// A worker's GPU and its share of this process's threads.
BackendOptions backend_of(const ComputeOptions&, const parallel::Group& worker);

}  // namespace msa::experiments
