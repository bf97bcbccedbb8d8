// SPDX-License-Identifier: MIT
// What kinds of layers a model has, as its configuration says.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace msa::io {

/// The kind of each layer, in transformers' names ("full_attention", "sliding_attention",
/// "linear_attention", "conv"); empty where the configuration, or its text_config, does not say.
std::vector<std::string> config_kinds(const nlohmann::json& config);
/// Whether layers of this kind attend to no keys of tokens: they convolve, are recurrent or have
/// a feed-forward part alone. A kind that is not known attends.
bool is_without_attention(const std::string& kind);
/// Such layers, by kind, ascending.
std::map<std::string, std::vector<int64_t>> layers_without_attention(
    const std::vector<std::string>& kinds);

}  // namespace msa::io
