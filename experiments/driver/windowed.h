// SPDX-License-Identifier: MIT
// Layers with a sliding window, in programs that choose how layers select: such a layer keeps its
// window, and its own cost counts in every total.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "experiments/driver/price.h"
#include "experiments/driver/run.h"
#include "experiments/report/table.h"

namespace msa::experiments {

struct WindowedLayer {
    int64_t layer = 0, window = 0;
    double model_layers = 1;  // that it stands for
    Cost cost;                // of it alone, at the context
    Cost total() const { return cost * model_layers; }
};

/// pick_layers() without those that have a sliding window: they go from o.layers to `windowed`, and
/// a note on `err` names them. InputError if no layer is left.
std::vector<io::LayerInfo> pick_without_window(RunOptions& o, const io::ActivationsReader&,
                                               std::vector<WindowedLayer>& windowed,
                                               std::ostream& err);
/// The numbers of `layers` and of the windowed ones, ascending.
std::vector<int64_t> all_layers(const std::vector<int64_t>& layers,
                                const std::vector<WindowedLayer>& windowed);
/// resolve_pricing() for the `measured` layers, and how many of the model's each windowed one
/// stands for: those of its kind, as model_config says, or itself.
void resolve_pricing(PricingOptions&, const io::ActivationsInfo&,
                     const std::vector<int64_t>& measured, std::vector<WindowedLayer>& windowed);
/// A unit for each, which writes /windowed/<l>. The arguments must live as long as the units.
std::vector<Unit> windowed_units(const io::ActivationsReader&,
                                 const std::vector<WindowedLayer>& windowed, const PricingOptions&,
                                 const analysis::Hardware&);

/// The windowed layers of a run, by number.
std::vector<WindowedLayer> read_windowed(const io::ResultsReader&);
/// The cost of all the layers that they stand for.
Cost cost_of(const std::vector<WindowedLayer>&);
report::Shape windowed_shape();
report::Table windowed_table(const std::vector<WindowedLayer>&);
/// Says that the page's times include them; empty if there are none.
std::string windowed_note(const std::vector<WindowedLayer>&);

}  // namespace msa::experiments
