// SPDX-License-Identifier: MIT
// One layer of msa-advise: what every setting keeps of it and costs on it.
#pragma once

#include <string>
#include <vector>

#include "analysis/hardware.h"
#include "core/io/activations.h"
#include "experiments/advise/setting.h"
#include "experiments/driver/run.h"

namespace msa::experiments::advise {

/// The queries that a layer is judged by: blocks of neighbouring ones, as many as a tile of the
/// kernels takes, all of which see more keys than the largest budget. A block is what the bootstrap
/// draws.
struct QueryBlocks {
    int64_t size = 0;                // T, queries of a block
    std::vector<int64_t> tokens;     // packed, ascending, T of each block
    std::vector<int64_t> sequences;  // [blocks]
    bool adjacent = true;            // the queries of each block follow each other without gaps
};

/// Of the queries that the options choose, --sample-queries of them at most. InputError where fewer
/// than two blocks see more than `largest` keys.
QueryBlocks choose_blocks(const AdviseOptions&, const io::ActivationsInfo&, const io::LayerInfo&,
                          int64_t largest);

/// Measures all settings on `layer` and writes /layers/<l>, /queries/<l> and /advise/<l>.
/// Throws Interrupted when a stop is requested.
void advise_layer(const AdviseOptions&, const io::ActivationsReader&, const io::LayerInfo& layer,
                  const std::vector<Setting>& settings, const analysis::Hardware&, const Worker&,
                  io::UnitWriter&);

}  // namespace msa::experiments::advise
