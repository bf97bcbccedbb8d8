// SPDX-License-Identifier: MIT
// Words on the layers of a model that msalab leaves as they are.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace msa::experiments::inspect {

/// Numbers of layers by the kind's name, which becomes valid UTF-8.
nlohmann::ordered_json named_layers(const std::map<std::string, std::vector<int64_t>>&);

/// Says that some layers have a sliding window; `others` have none.
void print_windowed(const std::vector<std::string>& others, std::ostream& out);
/// A line for each kind of named_layers().
void print_without_attention(const nlohmann::ordered_json& by_kind, std::ostream& out);

}  // namespace msa::experiments::inspect
