// SPDX-License-Identifier: MIT
// One layer of msa-fit-indexer, from its activations to its curves and weights.
#pragma once

#include <span>
#include <string>

#include "core/io/activations.h"
#include "experiments/driver/run.h"
#include "experiments/fit/data.h"
#include "experiments/fit/options.h"
#include "experiments/fit/state.h"

namespace msa::experiments::fit {

/// The name of a layer in results and messages.
std::string unit_of(int64_t layer);

/// Common data of a run's layers.
struct FitRun {
    const FitOptions& options;
    const io::ActivationsReader& file;
    const Split& split;
};

/// "about 6 min a layer, 2 h 55 min all 30 one after the other, at 3.9 s a step ...": at that pace;
/// nothing where all together take less than a minute.
std::string pace_text(const FitOptions&, double seconds_per_step);

/// Fits the indexer of `layers` (shared_layers), from its checkpoint if there is one, and writes
/// it. Runs on the first of `workers`. Throws Interrupted if a stop is requested, InputError if the
/// loss is not finite; in both cases the checkpoint has the last good state.
void fit_layer(const FitRun&, std::span<const int64_t> layers, const Checkpoint&, const Worker&,
               const parallel::Group&, io::UnitWriter&);

/// Runs on the other workers: their shares of the steps. Returns early if the first one throws as
/// fit_layer says.
void follow_layer(const FitRun&, std::span<const int64_t> layers, Backend&, int threads,
                  const parallel::Group&);

}  // namespace msa::experiments::fit
