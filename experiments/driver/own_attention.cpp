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

}  // namespace msa::experiments
