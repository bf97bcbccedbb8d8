// SPDX-License-Identifier: MIT
#include "experiments/inspect/kept_layers.h"

#include <nlohmann/json.hpp>
#include <ostream>

#include "core/utf8.h"
#include "experiments/report/text.h"

namespace msa::experiments::inspect {

using nlohmann::ordered_json;

ordered_json named_layers(const std::map<std::string, std::vector<int64_t>>& layers) {
    ordered_json named = ordered_json::object();
    for (const auto& [kind, of] : layers) named[valid_utf8(kind)] = of;
    return named;
}

void print_windowed(const std::vector<std::string>& others, std::ostream& out) {
    out << "  Layers with a sliding window of so many tokens stay as they are. "
        << (others.empty() ? "There is no other."
                           : "What can be sparse: --layers " + join(others, ","))
        << '\n';
}

void print_without_attention(const ordered_json& by_kind, std::ostream& out) {
    for (const auto& [kind, layers] : by_kind.items()) {
        const auto numbers = layers.get<std::vector<int64_t>>();
        out << "  Without softmax attention (" << printable(kind) << "), left as "
            << (numbers.size() == 1 ? "it is: " : "they are: ") << layers_text(numbers) << '\n';
    }
}

}  // namespace msa::experiments::inspect
