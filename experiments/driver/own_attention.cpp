// SPDX-License-Identifier: MIT
#include "experiments/driver/own_attention.h"

#include <ostream>
#include <string>

#include "core/utf8.h"

namespace msa::experiments {

void warn_of_own_attention(const io::ActivationsReader& file, int64_t number, Computed computed,
                           std::ostream& err) {
    const io::LayerInfo& layer = file.layer(number);
    const bool plain = computed == Computed::plain;
    std::string names = layer.own_sparse ? "own_attention \"sparse\"" : "";
    for (const auto& [name, values] : layer.own_attention)
        if (plain || name == "attention_chunk") names += (names.empty() ? "" : ", ") + name;
    if (names.empty()) return;
    err << "warning: " << printable(file.name()) << " /layers/" << number << " has " << names
        << ": the model's own attention is not the " << (plain ? "plain causal " : "")
        << "attention computed here\n";
}

void write_attention(io::UnitWriter& to, const std::string& group, const Problem& p,
                     View<const float, 1> sinks) {
    to.attribute(group, "softmax_scale", p.softmax_scale());
    if (p.window) to.attribute(group, "window", *p.window);
    if (p.softcap) to.attribute(group, "softcap", *p.softcap);
    if (!sinks) return;
    to.write<float, 1>(group + "/sinks", sinks,
                       {"head", "nats", "learnable logit that competes in the head's softmax"});
}

}  // namespace msa::experiments
