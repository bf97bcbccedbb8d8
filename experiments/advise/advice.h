// SPDX-License-Identifier: MIT
// What the results of msa-advise say: made from results.h5 alone.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "analysis/bootstrap.h"
#include "core/io/results.h"
#include "experiments/advise/setting.h"
#include "experiments/driver/estimate.h"

namespace msa::experiments::advise {

/// The target: "mass kept of at least 0.95"
std::string target_text(const AdviseOptions&);

/// A setting on a layer, or on several together: mean over the layers, costs those of all the
/// layers of the model that they stand for.
struct Kept {
    analysis::Estimate mass, error;
    std::vector<double> mass_draws, error_draws;  // [kDraws]
    Cost cost;
    std::string order;      // loop order that answers first; empty where layers differ
    double tile_union = 0;  // 0: not measured, or of several layers
    bool enough = false;    // of one layer: it reaches the target, with the far end of its interval
};

struct LayerAdvice {
    int64_t layer = 0;
    Cost dense;
    std::vector<Kept> kept;             // [settings]
    std::optional<size_t> recommended;  // its own cheapest setting that is enough and cheaper than
                                        // dense attention; nothing: it should stay dense
    bool sparse = false;                // under the setting recommended for all
    int64_t blocks = 0, queries = 0, longest_sequence = 0, sequences = 0;
};

/// One setting for all layers, those where it is not enough staying dense.
struct Choice {
    size_t setting = 0;
    std::vector<int64_t> sparse, dense;  // layers
    Kept kept;                           // of the sparse layers; cost: of all layers
    double confidence = 0;  // share of the draws in which every sparse layer reaches the target;
                            // NaN where a layer has too few blocks to draw from
};

struct Advice {
    AdviseOptions asked;
    uint64_t seed = 0;
    std::vector<Setting> settings;
    std::vector<LayerAdvice> layers;
    /// Layers of the model for each of these.
    double share() const { return layers_share(asked, std::ssize(layers)); }
    Cost dense;                 // of all layers of the model
    std::vector<Kept> all;      // [settings] of all layers together, all of them sparse
    std::vector<size_t> front;  // Pareto front of cost against loss, by cost; without bounds
    std::optional<Choice> recommended;
    Choice nearest;                        // where nothing is recommended
    std::string why_none;                  // likewise
    nlohmann::ordered_json dropped_sinks;  // of what is shown, as driver/sink_note.h has them
    std::optional<size_t> bound;           // fewest tokens at which the oracle reaches the target
};

/// Recommended is, under --keep or --error, the setting of the lowest cost of all layers together,
/// where a layer is sparse if the setting reaches the target there with the far end of the 95 %
/// interval and costs less than dense attention; under --budget, the setting within the budget that
/// keeps the most mass. Settings that are bounds (is_bound) are left out unless all are.
Advice make_advice(const io::ResultsReader&);

}  // namespace msa::experiments::advise
