// SPDX-License-Identifier: MIT
// How many heads a layer has, as the configuration of its model says.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>

namespace msa::io {

/// Key-value heads and query heads of layer `layer`: its own number where the configuration names
/// one for it, else that of all layers; nothing where it names none.
std::optional<int64_t> config_kv_heads(const nlohmann::json& config, int64_t layer);
std::optional<int64_t> config_query_heads(const nlohmann::json& config, int64_t layer);

}  // namespace msa::io
