// SPDX-License-Identifier: MIT
#include "experiments/driver/own_attention.h"

#include <ostream>
#include <string>

namespace msa::experiments {

void warn_of_own_attention(const std::filesystem::path& file, const io::LayerInfo& layer,
                           std::ostream& err) {
    if (layer.own_attention.empty()) return;
    std::string names;
    for (const auto& [name, values] : layer.own_attention)
        names += (names.empty() ? "" : ", ") + name;
    err << "warning: " << file.string() << " /layers/" << layer.layer << " has " << names
        << ": the model's own attention is not the plain causal attention computed here\n";
}

}  // namespace msa::experiments
