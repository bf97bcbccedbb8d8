// SPDX-License-Identifier: MIT
// The findings of msa-advise, computed from results.h5 alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/bootstrap.h"
#include "core/io/results.h"
#include "experiments/advise/options.h"
#include "experiments/driver/windowed.h"
#include "experiments/measure/numbers_by_metric.h"
#include "experiments/measure/sinks.h"

namespace msa::experiments::advise {

/// Errors are by group, for all settings in one pass; recalls would need an oracle of each k.
inline constexpr measure::Measured kMeasured{.recalls = false, .error_of = measure::ErrorOf::group};

/// Why a setting is singled out.
enum class Role : uint8_t { recommended, nearest, front, bound };

/// A setting on a layer, or on several together: mean over the layers, costs those of all the
/// layers of the model that they stand for.
struct SettingNumbers : measure::NumbersByMetric {
    using measure::NumbersByMetric::NumbersByMetric;
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
    std::vector<SettingNumbers> kept;   // [settings]
    std::optional<size_t> recommended;  // the layer's cheapest setting that is enough and cheaper
                                        // than dense attention; nothing: stay dense
    bool sparse = false;                // under the recommended setting
    int64_t blocks = 0, queries = 0, longest_sequence = 0, sequences = 0;
};

/// One setting for all layers; layers where it is not enough stay dense.
struct Choice {
    size_t setting = 0;
    std::vector<int64_t> sparse, dense;  // layers
    SettingNumbers kept;                 // of the sparse layers; cost: of all layers
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
    std::vector<SettingNumbers> all;      // [settings] of all layers together, all of them sparse
    std::vector<size_t> front;  // Pareto front of cost against loss, by cost; without bounds
    std::optional<Choice> recommended;
    Choice nearest;                    // if nothing is recommended
    std::string why_none;              // likewise
    std::vector<measure::Sink> sinks;  // of the sparse layers of what is shown
    std::optional<size_t> bound;       // fewest tokens with which the oracle reaches the target
};

/// Under --keep or --error, the recommended setting has the lowest total cost of all layers. A
/// layer is sparse if the worse end of its 95 % interval reaches the target and it costs less than
/// dense attention. Under --budgets, it is the setting within the budget that keeps the most mass.
/// Bounds (is_bound) are excluded unless all settings are bounds.
Advice make_advice(const io::ResultsReader&);

/// The tables advice, own_settings, layers, settings, measured, windowed and dropped_sinks.
report::Report make_report(const io::ResultsReader&);

}  // namespace msa::experiments::advise
