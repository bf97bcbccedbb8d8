// SPDX-License-Identifier: MIT
// The workers of a run (core/train/workers.h): one for each rank of MPI, or for each GPU of
// --devices, or one. The first one keeps the results, the others take their shares of the steps.
#pragma once

#include <functional>

#include "core/train/model.h"
#include "core/train/workers.h"
#include "experiments/pretrain/options.h"

namespace msa::experiments::pretrain {

/// InputError where both ranks and --devices name several workers, or where they do not divide
/// --sequences; UnsupportedError where they compute on GPUs whose gradients cannot be added up.
int count_workers(const PretrainOptions& options);

/// Does `work` for the workers of this process at the same time; throws the first error of any.
void work_together(const PretrainOptions& options,
                   const std::function<void(train::Workers&)>& work);

/// Where a worker computes: its GPU, and its part of this process's threads.
BackendOptions backend_of(const PretrainOptions& options, const train::Workers& worker);

/// What a worker beside the first one does in Training::run: its shares of the steps that are left,
/// with the first one's weights. Returns early where the first one throws for a reason that all
/// see: a stop that was asked for, or a step that is not finite.
void follow(const PretrainOptions& options, const Text& text, train::Model& model,
            train::Workers& workers);

}  // namespace msa::experiments::pretrain
