// SPDX-License-Identifier: MIT
// The findings of msa-reuse, computed from results.h5 alone.
#pragma once

#include <string>
#include <vector>

#include "core/io/results.h"
#include "experiments/driver/windowed.h"
#include "experiments/measure/numbers_by_metric.h"
#include "experiments/measure/sinks.h"
#include "experiments/reuse/options.h"
#include "experiments/reuse/pattern.h"

namespace msa::experiments::reuse {

/// Beside the numbers of the list (measure/accumulators.h): mass_lost, mass kept with own ids less
/// that with the given ids, and own_recall, of the blocks of own ids.
using measure::NumbersByMetric;

/// Layer `target` with the ids of layer `source`, both by number in the model.
struct Pair {
    int64_t source = 0, target = 0;
    NumbersByMetric kept;
    int64_t distance() const { return target - source; }
};

/// Mean over the pairs at one distance; `own`: over the same layers with their own ids.
struct AtDistance {
    int64_t distance = 0, pairs = 0;
    NumbersByMetric kept, own;
};

/// Why a pattern is among the findings.
enum class Role : uint8_t {
    own,    // every layer computes its own ids
    asked,  // with --every or --groups
    best,   // least mean loss of its number of computing layers
    each,  // least mean loss of the fewest computing layers with which every layer is in the target
    mean,  // the first of the best whose mean is in the target
};

/// Measures of a pattern: mean over the layers, costs summed.
struct Shared {
    Role role = Role::own;
    std::string name;
    LayerPattern pattern;
    NumbersByMetric kept;
    double most_lost = 0;             // mass_lost of the layer that loses most
    Cost cost, selection;             // of all layers; of the computed selections
    Cost saved;                       // selection not computed, against own ids
    double of_own = 0, of_dense = 0;  // time relative to own ids, and to dense attention
    bool each = false, mean = false;  // every layer, or the mean over layers, reaches the target
    std::vector<int64_t> computing, sources;  // layers that compute ids; whose ids each layer has
};

struct Findings {
    ReuseOptions asked;
    uint64_t seed = 0;
    bool is_bound = false;        // the selector needs dense attention
    std::vector<int64_t> layers;  // measured
    std::string missing;          // layers of the model between them: missing_layers()
    std::vector<Pair> pairs;      // by target, then source
    std::vector<AtDistance> distances;
    double floor_mass = 0, floor_error = 0,
           oracle_mass = 0;  // means: of random blocks, of the oracle
    int64_t queries = 0, blocks = 0, sequences = 0, longest_sequence = 0;
    std::vector<measure::Sink> sinks;      // with own ids
    std::vector<WindowedLayer> windowed;   // part of every cost of all layers
    Cost dense;                            // of all layers
    std::vector<Shared> patterns;          // own ids first; by role
    std::vector<int64_t> sharing_nothing;  // of asked.every: each layer computes its own ids

    /// The first pattern of a role, if any.
    const Shared* find(Role) const;
};

/// The pair of the layers at these indices, source <= target.
const Pair& pair_of(const Findings&, size_t source, size_t target);

Findings make_findings(const io::ResultsReader&);

/// The tables pairs, distances, patterns, measured, windowed and dropped_sinks.
report::Report make_report(const io::ResultsReader&);

}  // namespace msa::experiments::reuse
