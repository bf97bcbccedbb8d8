// SPDX-License-Identifier: MIT
// One layer of msa-advise: mass, error and cost of every setting.
#pragma once

#include <string>
#include <vector>

#include "analysis/hardware.h"
#include "core/io/activations.h"
#include "experiments/advise/options.h"
#include "experiments/driver/run.h"
#include "experiments/measure/queries.h"

namespace msa::experiments::advise {

/// The measured queries of a layer: of those that every program samples, those that see more than
/// `largest` keys. InputError if they are fewer than two blocks.
measure::LayerQueries advised_queries(const AdviseOptions&, const io::ActivationsInfo&,
                                      const io::LayerInfo&, int64_t largest);

/// Measures all settings on `layer`, and the unions of blocks on tiles of neighbouring queries, and
/// writes /layers/<l>, /queries/<l> and /advise/<l>.
/// Throws Interrupted when a stop is requested.
void advise_layer(const AdviseOptions&, const io::ActivationsReader&, const io::LayerInfo& layer,
                  const std::vector<Setting>& settings, const analysis::Hardware&, const Worker&,
                  io::UnitWriter&);

}  // namespace msa::experiments::advise
