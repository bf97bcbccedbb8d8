// SPDX-License-Identifier: MIT
// The findings of msa-advise, computed from results.h5 alone.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "analysis/bootstrap.h"
#include "core/io/results.h"
#include "experiments/advise/options.h"
#include "experiments/driver/estimate.h"
#include "experiments/driver/windowed.h"
#include "experiments/measure/kept.h"

namespace msa::experiments::advise {

/// A setting on a layer, or on several together: mean over the layers, costs those of all the
/// layers of the model that they stand for.
struct Kept : measure::Kept {
    using measure::Kept::Kept;
    const analysis::Estimate& mass() const { return (*this)["mass_kept"]; }
    const analysis::Estimate& error() const { return (*this)["group_output_error"]; }
    Cost cost;
    std::string order;        // fastest loop order; empty if layers differ
    double union_blocks = 0;  // 0: not measured, or of several layers
    bool enough = false;      // of one layer: the worse end of its interval reaches the target
};

struct LayerAdvice {
    int64_t layer = 0;
    Cost dense;
    std::vector<Kept> kept;             // [settings]
    std::optional<size_t> recommended;  // the layer's cheapest setting that is enough and cheaper
                                        // than dense attention; nothing: stay dense
    bool sparse = false;                // under the recommended setting
    int64_t blocks = 0, queries = 0, longest_sequence = 0, sequences = 0;
};

/// One setting for all layers; layers where it is not enough stay dense.
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
    std::vector<WindowedLayer> windowed;  // part of every cost of all layers
    Cost dense;                           // of all layers of the model
    std::vector<Kept> all;                // [settings] of all layers together, all of them sparse
    std::vector<size_t> front;  // Pareto front of cost against loss, by cost; without bounds
    std::optional<Choice> recommended;
    Choice nearest;                        // if nothing is recommended
    std::string why_none;                  // likewise
    nlohmann::ordered_json dropped_sinks;  // among what is shown, see driver/sink_note.h
    std::optional<size_t> bound;           // fewest tokens with which the oracle reaches the target
};

/// Under --keep or --error, the recommended setting has the lowest total cost of all layers. A
/// layer is sparse if the worse end of its 95 % interval reaches the target and it costs less than
/// dense attention. Under --budget, it is the setting within the budget that keeps the most mass.
/// Bounds (is_bound) are excluded unless all settings are bounds.
Advice make_advice(const io::ResultsReader&);

/// Text of each number of the summary, JSON object.
std::string advise_definitions();

/// summary.json: {"format", "program", "options", "definitions", "target", "sampling",
/// "recommended", "nearest", "why_none", "dense", "windowed", "bound", "front": [...], "layers":
/// [...], "settings": [...]}. An estimate is {"value", "low", "high"}.
std::string advise_summary(const Advice&, const io::RunRecord&);

/// The page: the setting with its intervals, the Pareto front, the layers.
void print_advice(const Advice&, const io::RunRecord&, std::ostream& out);

/// Why no setting reaches the target, and the nearest one; empty where one is recommended.
std::string nearest_text(const Advice&);

}  // namespace msa::experiments::advise
