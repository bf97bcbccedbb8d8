// SPDX-License-Identifier: MIT
// One layer of msa-reuse: its measures with its own ids and with those of each earlier layer.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/hardware.h"
#include "core/io/activations.h"
#include "experiments/driver/run.h"
#include "experiments/measure/queries.h"
#include "experiments/reuse/ids.h"
#include "experiments/reuse/options.h"

namespace msa::experiments::reuse {

/// The baseline choice.
inline constexpr const char* kFloor = "random";

/// Measures `layer` with the ids of each of o.layers up to it, and writes /layers/<l>, /queries/<l>
/// and /reuse/<l>. Throws Interrupted if a stop is requested.
void reuse_layer(const ReuseOptions& o, const io::ActivationsReader&, const io::LayerInfo& layer,
                 const measure::LayerQueries&, OwnIds&, const analysis::Hardware&, const Worker&,
                 io::UnitWriter&);

}  // namespace msa::experiments::reuse
