// SPDX-License-Identifier: MIT
// One layer of msa-fit-indexer, from its activations to its curves and weights.
#pragma once

#include <string>

#include "core/io/activations.h"
#include "experiments/driver/run.h"
#include "experiments/fit/data.h"
#include "experiments/fit/options.h"
#include "experiments/fit/state.h"

namespace msa::experiments::fit {

/// What a layer is called in results and messages.
std::string unit_of(int64_t layer);

/// Fits `layer`, from its checkpoint where there is one, and writes it. Throws Interrupted when a
/// stop is requested, InputError when the loss is not finite; both after the last good state is in
/// the checkpoint.
void fit_layer(const FitOptions&, const io::ActivationsReader&, int64_t layer, const Split&,
               const Checkpoint&, const Worker&, io::UnitWriter&);

}  // namespace msa::experiments::fit
