// SPDX-License-Identifier: MIT
// One layer of msa-cache: what a cache of its blocks sees, group by group, and how that is stored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/block_cache.h"
#include "core/io/results.h"
#include "core/problem.h"
#include "experiments/cache/options.h"
#include "experiments/driver/run.h"

namespace msa::experiments::cache {

/// What a layer's steps are, before any block is read.
struct LayerSteps {
    int64_t layer = 0;
    Problem problem;
    int64_t block_bytes = 0;     // keys and values of one block of one group
    int64_t context_blocks = 0;  // that the last step of the longest sequence sees
    int64_t longest_step = 0;    // k: slots of a step's blocks, in any selector
    std::optional<int64_t>
        previous{};      // the layer before it in the file, by whose ids it is guessed
    std::string note{};  // on `previous`: why there is none, or what lies between

    int64_t steps() const { return problem.queries(); }
    /// The smallest cache that holds any step.
    int64_t smallest_cache() const { return std::min(longest_step, context_blocks); }
};

/// Of the layers chosen. InputError naming file, layer and dataset where the queries of a sequence
/// are no decode steps.
std::vector<LayerSteps> read_steps(const CacheOptions&, const io::ResultsReader&);

/// What one group sees, or several together, over all sequences.
struct Seen {
    analysis::Reuse reuse;
    std::vector<int64_t> lfu{}, belady{};  // misses by the sizes of the options
    analysis::Prefetch by_step{};
    std::optional<analysis::Prefetch> by_layer{};
    Seen& operator+=(const Seen&);
};

/// Measures the selectors on a layer, and writes /layers/<l> and /cache. Throws Interrupted when a
/// stop is requested.
void measure_layer(const CacheOptions&, const io::ResultsReader&, const LayerSteps&, const Worker&,
                   io::UnitWriter&);

/// What stands in /cache/<selector>/<layer>, all groups together.
Seen read_seen(const io::ResultsReader&, const std::string& selector, int64_t layer);

}  // namespace msa::experiments::cache
