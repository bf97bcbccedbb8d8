// SPDX-License-Identifier: MIT
#include "core/io/config_kinds.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace msa::io {
namespace {

using nlohmann::json;

constexpr int64_t kMostOfConfig = 1 << 20;  // layers
constexpr const char *kFull = "full_attention", *kSliding = "sliding_attention",
                     *kLinear = "linear_attention", *kConv = "conv";

json value_of(const json& config, const char* name) {
    return config.contains(name) ? config[name] : json();
}

std::optional<int64_t> count_of(const json& config, const char* name) {
    const json number = value_of(config, name);
    if (!number.is_number_integer() || number < 1 || number > kMostOfConfig) return std::nullopt;
    return number.get<int64_t>();
}

/// One for each layer: names, MiniMax-Text-01's numbers, or Nemotron-H's letters.
std::vector<std::string> listed_kinds(const json& config) {
    std::vector<std::string> kinds;
    for (const char* name : {"layer_types", "layers_block_type"}) {
        const json list = value_of(config, name);
        if (!list.is_array() || list.empty()) continue;
        for (const json& kind : list)
            kinds.push_back(kind.is_string() ? kind.get<std::string>() : std::string());
        return kinds;
    }
    if (const json types = value_of(config, "attn_type_list"); types.is_array())
        for (const json& softmax : types) kinds.emplace_back(softmax == 0 ? kLinear : kFull);
    if (const json letters = value_of(config, "hybrid_override_pattern"); letters.is_string())
        for (const char letter : letters.get<std::string>())
            kinds.emplace_back(letter == 'M'   ? kLinear
                               : letter == '-' ? "mlp"
                               : letter == 'E' ? "moe"
                                               : kFull);
    return kinds;
}

/// Of `count` layers, those in the list attend.
std::vector<std::string> kinds_beside(const json& attending, int64_t count, const char* others) {
    std::vector<std::string> kinds;
    for (int64_t layer = 0; layer < count; ++layer)
        kinds.emplace_back(std::find(attending.begin(), attending.end(), layer) != attending.end()
                               ? kFull
                               : others);
    return kinds;
}

/// Of `count` layers, each one at `offset` in a period attends.
std::vector<std::string> periodic_kinds(int64_t count, int64_t period, int64_t offset) {
    std::vector<std::string> kinds;
    for (int64_t layer = 0; layer < count; ++layer)
        kinds.emplace_back(layer % period == offset ? kFull : kLinear);
    return kinds;
}

}  // namespace

std::vector<std::string> config_kinds(const json& whole) {
    if (!whole.is_object()) return {};
    const json text = value_of(whole, "text_config"), &config = text.is_object() ? text : whole;
    if (std::vector<std::string> kinds = listed_kinds(config); !kinds.empty()) return kinds;
    const std::optional<int64_t> count = count_of(config, "num_hidden_layers");
    if (!count) return {};
    for (const auto& [name, others] :
         {std::pair{"full_attn_idxs", kConv}, {"attn_layer_indices", kLinear}})
        if (const json layers = value_of(config, name); layers.is_array())
            return kinds_beside(layers, *count, others);
    if (const json blocks = value_of(config, "block_types"); blocks.is_array() && !blocks.empty()) {
        std::vector<std::string> kinds;  // RecurrentGemma's, again and again
        for (size_t layer = 0; std::cmp_less(layer, *count); ++layer)
            kinds.emplace_back(blocks[layer % blocks.size()] == "recurrent" ? kLinear : kSliding);
        return kinds;
    }
    if (const auto interval = count_of(config, "full_attention_interval"))
        return periodic_kinds(*count, *interval, *interval - 1);
    const json offset = value_of(config, "attn_layer_offset");
    if (const auto period = count_of(config, "attn_layer_period");
        period && offset.is_number_integer())
        return periodic_kinds(*count, *period, offset.get<int64_t>());
    return {};
}

bool is_without_attention(const std::string& kind) {
    const auto known = {kLinear, kConv, "mamba", "recurrent", "mlp", "moe"};
    return std::ranges::any_of(known, [&](const char* one) { return kind == one; });
}

std::map<std::string, std::vector<int64_t>> layers_without_attention(
    const std::vector<std::string>& kinds) {
    std::map<std::string, std::vector<int64_t>> found;
    for (size_t layer = 0; layer < kinds.size(); ++layer)
        if (is_without_attention(kinds[layer]))
            found[kinds[layer]].push_back(static_cast<int64_t>(layer));
    return found;
}

}  // namespace msa::io
