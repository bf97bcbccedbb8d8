// SPDX-License-Identifier: MIT
// The workers of a run (driver/group.h). The first one writes the results; the others do their
// shares of the steps.
#pragma once

#include "core/train/model.h"
#include "experiments/driver/group.h"
#include "experiments/pretrain/options.h"

namespace msa::experiments::pretrain {

/// InputError unless the number of workers divides --sequences; UnsupportedError if they use GPUs
/// that cannot sum gradients.
void check_workers(const PretrainOptions& options, const Ranks& ranks);

/// The counterpart of Training::run on the other workers: their shares of the remaining steps, with
/// the first one's weights. Returns early if the first one throws for a reason that all see: a
/// requested stop, or a step that is not finite.
void follow(const PretrainOptions& options, const Text& text, train::Model& model,
            const parallel::Group& workers);

}  // namespace msa::experiments::pretrain
