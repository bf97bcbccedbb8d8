// SPDX-License-Identifier: MIT
#include "experiments/driver/full_layers.h"

#include <ostream>

#include "experiments/driver/layers.h"
#include "experiments/driver/options.h"
#include "experiments/report/text.h"

namespace msa::experiments {
namespace {

constexpr const char* kWindow = "window";

Windows windows_of(const std::vector<io::LayerInfo>& layers) {
    Windows windows;
    for (const io::LayerInfo& layer : layers) windows[*layer.window()].push_back(layer.layer);
    return windows;
}

}  // namespace

std::vector<io::LayerInfo> pick_full_layers(RunOptions& o, const io::ActivationsReader& file,
                                            std::ostream& err) {
    const bool named = !o.layers.empty();
    std::vector<io::LayerInfo> layers = pick_layers(o, file, err), windowed, full;
    for (const io::LayerInfo& layer : layers) (layer.window() ? windowed : full).push_back(layer);
    if (windowed.empty()) return layers;
    err << "note: " << windows_text(windows_of(windowed)) << ", which msalab leaves as it is: ";
    if (named || full.empty()) {
        err << "what is measured there no model can have\n";
        return layers;
    }
    std::vector<int64_t> left_out;
    for (const io::LayerInfo& layer : windowed) left_out.push_back(layer.layer);
    o.layers.clear();
    for (const io::LayerInfo& layer : full) o.layers.push_back(layer.layer);
    err << layers_text(o.layers) << (o.layers.size() == 1 ? " is" : " are")
        << " measured alone; --layers " << join(left_out, ",") << " measures the others\n";
    return full;
}

std::string windows_text(const Windows& windows) {
    std::string text;
    for (const auto& [window, layers] : windows)
        add_item(text, ", ", layers_text(layers), " attend", layers.size() == 1 ? "s" : "",
                 " to a sliding window of ", window, " tokens");
    return text;
}

std::optional<int64_t> recorded_window(const io::ResultsReader& results, const std::string& group) {
    if (!results.has(group, kWindow)) return std::nullopt;
    return static_cast<int64_t>(results.number(group, kWindow));
}

std::vector<int64_t> averaged_layers(const io::ResultsReader& results,
                                     const std::vector<int64_t>& layers) {
    std::vector<int64_t> full = layers;
    std::erase_if(full, [&](int64_t layer) {
        return recorded_window(results, concat("/layers/", layer)).has_value();
    });
    return full.empty() ? layers : full;
}

std::string windows_note(const io::ResultsReader& results, const std::string& parent) {
    Windows windows;
    for (const std::string& layer : results.list(parent))
        if (const auto window = recorded_window(results, concat(parent, "/", layer)))
            windows[*window].push_back(std::stoll(layer));
    if (windows.empty()) return "";
    std::string text = windows_text(windows);
    text.front() = 'L';
    const bool alone = windows.size() == 1 && windows.begin()->second.size() == 1;
    return concat(text, ", and msalab leaves ", alone ? "it as it is" : "them as they are",
                  ". Selectors choose among all blocks, of which most have no mass there: their "
                  "recall says nothing.");
}

}  // namespace msa::experiments
