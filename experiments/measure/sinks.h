// SPDX-License-Identifier: MIT
// Finds choices of blocks that drop an attention sink (fig:attention-sink). If dense attention has
// a sink, the model needs it; one forced block keeps it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/io/results.h"
#include "experiments/report/report.h"

namespace msa::experiments::measure {

/// Probability on token 0 in a layer: of dense attention, and of a choice of blocks.
struct Sink {
    int64_t layer = 0;
    std::string selector;
    std::optional<std::string> setting;  // of programs that try several
    double dense = 0, sparse = 0;
};
/// Reads it from the sums of the choice `name` in a layer, as means over heads.
Sink read_sink(const io::ResultsReader&, const std::string& layer, const std::string& name,
               const std::string& selector);

/// The table dropped_sinks.
const report::Shape& dropped_sinks_shape();
/// Adds the table of dropped sinks, and the note that names them if there are any. A sink is
/// dropped if it is above 0.05 in dense attention, and below 0.8 of that over the choice.
void add_dropped_sinks(const std::vector<Sink>&, report::Report&);

}  // namespace msa::experiments::measure
