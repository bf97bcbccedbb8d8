// SPDX-License-Identifier: MIT
#include "experiments/driver/layers.h"

#include "experiments/driver/own_attention.h"

namespace msa::experiments {

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

}  // namespace msa::experiments
