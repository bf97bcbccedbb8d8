// SPDX-License-Identifier: MIT
// One layer of msa-cache: reuse and misses of its blocks by group, and how they are stored.
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

/// A layer's decode steps, before any block is read.
struct LayerSteps {
    int64_t layer = 0;
    Problem problem;
    int64_t block_bytes = 0;            // keys and values of one block of one group
    int64_t context_blocks = 0;         // that the last step of the longest sequence sees
    int64_t longest_step = 0;           // k: most slots of a step, over all selectors
    std::optional<int64_t> previous{};  // the previous layer in the file, whose ids are the guess
    std::string note{};  // on `previous`: why there is none, or which layers lie between

    int64_t steps() const { return problem.queries(); }
    /// The smallest cache that holds every step.
    int64_t smallest_cache() const { return std::min(longest_step, context_blocks); }
};

/// Reads the steps of the chosen layers. InputError naming file, layer and dataset if the queries
/// of a sequence are not decode steps.
std::vector<LayerSteps> read_steps(const CacheOptions&, const io::ResultsReader&);

/// Reuse and misses of one group, or of several together, over all sequences.
struct Seen {
    analysis::Reuse reuse;
    std::vector<int64_t> lfu{}, belady{};  // misses for each size of the options
    analysis::Prefetch by_step{};
    std::optional<analysis::Prefetch> by_layer{};
    Seen& operator+=(const Seen&);
};

/// Measures the selectors on a layer and writes /layers/<l> and /cache. Throws Interrupted if a
/// stop is requested.
void measure_layer(const CacheOptions&, const io::ResultsReader&, const LayerSteps&, const Worker&,
                   io::UnitWriter&);

/// Reads /cache/<selector>/<layer>, all groups together.
Seen read_seen(const io::ResultsReader&, const std::string& selector, int64_t layer);

}  // namespace msa::experiments::cache
