// SPDX-License-Identifier: MIT
#include "experiments/driver/layers.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <string>

#include "core/io/config_kinds.h"
#include "core/utf8.h"
#include "experiments/report/text.h"

namespace msa::experiments {
namespace {

constexpr double kMostLayers = 1 << 20;

}  // namespace

std::vector<io::LayerInfo> pick_layers(RunOptions& o, const io::ActivationsReader& file,
                                       std::ostream& err) {
    if (o.layers.empty())
        for (const io::LayerInfo& layer : file.info().layers) o.layers.push_back(layer.layer);
    std::vector<io::LayerInfo> layers;
    for (int64_t number : o.layers) {
        layers.push_back(file.layer(number));
        io::require_post_rope(file, number);
    }
    for (int64_t number : o.layers)
        warn_of_own_attention(file, number, Computed::with_window_cap_and_sinks, err);
    return layers;
}

std::optional<int64_t> model_layers(const io::ActivationsInfo& info,
                                    std::span<const int64_t> layers) {
    using nlohmann::json;
    json config = json::parse(info.model_config, nullptr, false);
    if (config.is_object() && config.contains("text_config")) config = config["text_config"];
    if (!config.is_object()) return std::nullopt;
    const std::vector<std::string> kinds = io::config_kinds(config);
    if (!kinds.empty()) {
        std::set<std::string> those;
        for (const int64_t layer : layers)
            if (layer < std::ssize(kinds)) those.insert(kinds[static_cast<size_t>(layer)]);
        return std::ranges::count_if(kinds, [&](const auto& kind) { return those.contains(kind); });
    }
    for (const char* name : {"num_hidden_layers", "layers"}) {  // of transformers, of msa-pretrain
        const auto count = config.find(name);
        if (count == config.end() || !count->is_number_integer() || *count < 1) continue;
        return count->get<int64_t>();
    }
    return std::nullopt;
}

std::map<std::string, std::vector<int64_t>> without_attention(const io::ActivationsInfo& info) {
    return io::layers_without_attention(
        io::config_kinds(nlohmann::json::parse(info.model_config, nullptr, false)));
}

void add_model_layers(OptionTable& table, std::optional<int64_t>& layers) {
    table.count("model-layers", "N", layers,
                "layers of the model for which those measured stand; default: those of their kind "
                "that the capture's model_config says, or as many as are measured",
                between(1, kMostLayers));
}

void write_layer(io::UnitWriter& to, const io::LayerInfo& layer, const Problem& p,
                 const Sizes& more) {
    const std::string group = concat("/layers/", layer.layer);
    Sizes sizes{{"query_heads", p.query_heads},
                {"kv_heads", p.kv_heads},
                {"head_dim", p.head_dim},
                {"index_dim", p.index_dim}};
    sizes.insert(sizes.end(), more.begin(), more.end());
    for (const auto& [name, value] : sizes) to.attribute(group, name, value);
    to.attribute(group, "softmax_scale", p.softmax_scale());
    if (p.window) to.attribute(group, "window", *p.window);
    if (p.softcap) to.attribute(group, "softcap", *p.softcap);
    const Tensor<float, 1> sinks = io::layer_sinks(layer);
    if (sinks.data() == nullptr) return;
    to.write<float, 1>(group + "/sinks", sinks.view(),
                       {"head", "nats", "learnable logit that competes in the head's softmax"});
}

void warn_of_own_attention(const io::ActivationsReader& file, int64_t number, Computed computed,
                           std::ostream& err) {
    const io::LayerInfo& layer = file.layer(number);
    const bool plain = computed == Computed::plain;
    std::string names = layer.own_sparse ? "own_attention \"sparse\"" : "";
    for (const auto& [name, values] : layer.own_attention)
        if (plain || name == "attention_chunk") add_item(names, ", ", name);
    if (names.empty()) return;
    err << "warning: " << printable(file.name()) << " /layers/" << number << " has " << names
        << ": the model's own attention is not the " << (plain ? "plain causal " : "")
        << "attention computed here\n";
}

}  // namespace msa::experiments
