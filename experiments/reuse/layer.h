// SPDX-License-Identifier: MIT
// One layer of msa-reuse: what it keeps with its own ids, and with those of each layer before it.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/hardware.h"
#include "core/io/activations.h"
#include "experiments/driver/run.h"
#include "experiments/reuse/ids.h"
#include "experiments/reuse/options.h"

namespace msa::experiments::reuse {

/// The queries that layers are measured on, the same in all of them: the sampled ones that see more
/// than k blocks (with --all-rows, all that see a key). The bootstrap draws blocks of them: those
/// that lie in one key block of their sequence.
struct Queries {
    std::vector<int64_t> tokens;     // packed, ascending
    std::vector<int64_t> begins{0};  // [M + 1] the first query of each block, and the end
    std::vector<int64_t> sequences;  // [M]

    int64_t blocks() const { return std::ssize(sequences); }
    bool operator==(const Queries&) const = default;
};

/// InputError where fewer than two blocks have queries.
Queries choose_queries(const ReuseOptions&, const io::ActivationsInfo&, const io::LayerInfo&);

/// Measures `layer` with the ids of each of o.layers up to it, and writes /layers/<l>, /queries/<l>
/// and /reuse/<l>. Throws Interrupted when a stop is requested.
void reuse_layer(const ReuseOptions& o, const io::ActivationsReader&, const io::LayerInfo& layer,
                 const Queries&, OwnIds&, const analysis::Hardware&, const Worker&,
                 io::UnitWriter&);

}  // namespace msa::experiments::reuse
