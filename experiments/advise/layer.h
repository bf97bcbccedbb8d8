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

/// The measured queries of a layer, as whole kernel tiles of neighbouring queries. All see more
/// keys than the largest budget. A tile lies in one block of queries.
struct Tiles {
    int64_t size = 0;  // T, queries of a tile
    measure::LayerQueries queries = {};
    bool adjacent = true;  // the queries of each tile follow each other without gaps
};

/// Chooses tiles from the queries that the options name, at most --sample-queries queries.
/// InputError if fewer than two blocks of queries see more than `largest` keys.
Tiles choose_tiles(const AdviseOptions&, const io::ActivationsInfo&, const io::LayerInfo&,
                   int64_t largest);

/// Measures all settings on `layer` and writes /layers/<l>, /queries/<l> and /advise/<l>.
/// Throws Interrupted when a stop is requested.
void advise_layer(const AdviseOptions&, const io::ActivationsReader&, const io::LayerInfo& layer,
                  const std::vector<Setting>& settings, const analysis::Hardware&, const Worker&,
                  io::UnitWriter&);

}  // namespace msa::experiments::advise
