// SPDX-License-Identifier: MIT
// The findings of msa-reuse, computed from results.h5 alone.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/io/results.h"
#include "experiments/measure/drawn.h"
#include "experiments/reuse/options.h"
#include "experiments/reuse/pattern.h"

namespace msa::experiments::reuse {

/// Measures of a layer with the ids of some layer.
enum class Measure : uint8_t {
    mass_kept,
    mass_lost,     // mass kept with own ids minus that with the given ids
    block_recall,  // of the oracle's blocks
    own_recall,    // of the blocks of the layer's own ids
    output_error,
};
inline constexpr size_t kMeasures = 5;
/// Names in files and column headings, in the order of Measure.
inline constexpr const char* kMeasureNames[kMeasures] = {"mass_kept", "mass_lost", "block_recall",
                                                         "own_recall", "output_error"};

using measure::Kept;  // in the order of Measure

/// Layer `target` with the ids of layer `source`, both by number in the model.
struct Pair {
    int64_t source = 0, target = 0;
    Kept kept;
    int64_t distance() const { return target - source; }
};

/// Mean over the pairs at one distance; `own`: over the same layers with their own ids.
struct AtDistance {
    int64_t distance = 0, pairs = 0;
    Kept kept, own;
};

/// Measures of a pattern: mean over the layers, costs summed.
struct Shared {
    std::string name;
    LayerPattern pattern;
    Kept kept;
    double most_lost = 0;             // mass_lost of the layer that loses most
    Cost cost, selection;             // of all layers; of the computed selections
    bool each = false, mean = false;  // every layer, or the mean over layers, reaches the target
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
    nlohmann::ordered_json dropped_sinks;  // with own ids, see driver/sink_note.h
    Cost dense;                            // of all layers
    Shared own;                            // every layer computes its own ids
    std::vector<Shared> patterns;          // asked for with --every and --groups
    std::vector<Shared> front;  // least mean loss for each number of computing layers, ascending
    /// each: the least mean loss among the patterns with the fewest computing layers in which every
    /// layer reaches the target. mean: the first of the front whose mean reaches it.
    std::optional<Shared> each, mean;
};

/// The pair of the layers at these indices, source <= target.
const Pair& pair_of(const Findings&, size_t source, size_t target);

Findings make_findings(const io::ResultsReader&);

/// Text of each number of the summary, JSON object.
std::string reuse_definitions();

/// summary.json: {"format", "program", "options", "definitions", "target", "seed", "draws",
/// "is_bound", "layers", "missing_layers", "queries", "sequences", "references", "pairs": [...],
/// "distances": [...], "own", "patterns": [...], "front": [...], "each", "mean", "dense"}. An
/// estimate is {"value", "low", "high"}.
std::string reuse_summary(const Findings&, const io::RunRecord&);

/// The page: loss by distance, the requested patterns, the best ones.
void print_findings(const Findings&, const io::RunRecord&, std::ostream& out);

/// Why no pattern reaches the target, and the nearest one; empty if one does.
std::string nearest_text(const Findings&);

}  // namespace msa::experiments::reuse
