// SPDX-License-Identifier: MIT
// Finds selectors that drop an attention sink (fig:attention-sink). If dense attention has a sink,
// the model needs it; one forced block keeps it.
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>

namespace msa::experiments {

/// From rows {layer, selector, sink_mass_dense, sink_mass_sparse}, returns those with a dense sink
/// mass above 0.05 and a sparse one below 0.8 of it, with these four values, the first layer with
/// a sink and a remedy. A row's `setting`, if any, is kept.
nlohmann::ordered_json dropped_sinks(const nlohmann::ordered_json& rows);

/// Prints the verdict in a line and a paragraph that names them; nothing if there are none.
void print_dropped_sinks(const nlohmann::ordered_json& dropped, std::ostream& out);

}  // namespace msa::experiments
