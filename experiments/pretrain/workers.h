// SPDX-License-Identifier: MIT
// The workers of a run (driver/workers.h). The first one keeps the results, the others take their
// shares of the steps.
#pragma once

#include "core/train/model.h"
#include "experiments/driver/workers.h"
#include "experiments/pretrain/options.h"

namespace msa::experiments::pretrain {

/// InputError where the workers do not divide --sequences; UnsupportedError where they compute on
/// GPUs whose gradients cannot be added up.
void check_workers(const PretrainOptions& options, const Ranks& ranks);

/// What a worker beside the first one does in Training::run: its shares of the steps that are left,
/// with the first one's weights. Returns early where the first one throws for a reason that all
/// see: a stop that was asked for, or a step that is not finite.
void follow(const PretrainOptions& options, const Text& text, train::Model& model,
            const parallel::Group& workers);

}  // namespace msa::experiments::pretrain
