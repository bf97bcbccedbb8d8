// SPDX-License-Identifier: MIT
#include "experiments/driver/own_attention.h"

#include <ostream>
#include <string>

#include "core/utf8.h"

namespace msa::experiments {

void warn_of_own_attention(const std::filesystem::path& file, const io::LayerInfo& layer,
                           std::ostream& err) {
    if (layer.own_attention.empty() && !layer.own_sparse) return;
    std::string names = layer.own_sparse ? "own_attention \"sparse\"" : "";
    for (const auto& [name, values] : layer.own_attention)
        names += (names.empty() ? "" : ", ") + name;
    err << "warning: " << printable(file.string()) << " /layers/" << layer.layer << " has " << names
        << ": the model's own attention is not the plain causal attention computed here\n";
}

}  // namespace msa::experiments
