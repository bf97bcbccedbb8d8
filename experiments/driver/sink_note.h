// SPDX-License-Identifier: MIT
// Selectors that drop an attention sink (fig:attention-sink): where dense attention has one, the
// model needs it, and one forced block keeps it.
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>

namespace msa::experiments {

/// Of rows {layer, selector, sink_mass_dense, sink_mass_sparse}, those whose dense sink mass is
/// above 0.05 and whose sparse one is below 0.8 of it, with these four, the first layer with a sink
/// and a remedy. Where rows have a `setting`, it stays beside the selector.
nlohmann::ordered_json dropped_sinks(const nlohmann::ordered_json& rows);

/// The verdict in a line, and a paragraph that names them; nothing for none.
void print_dropped_sinks(const nlohmann::ordered_json& dropped, std::ostream& out);

}  // namespace msa::experiments
