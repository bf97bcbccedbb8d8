// SPDX-License-Identifier: MIT
#include "experiments/driver/windowed.h"

#include <algorithm>
#include <ostream>

#include "experiments/driver/full_layers.h"
#include "experiments/driver/layers.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments {
namespace {

constexpr const char* kGroup = "/windowed";

using Of = const WindowedLayer&;
const report::TableOf<WindowedLayer> kTable{
    "windowed",
    "layers with a sliding window, which keep it, at their own cost",
    1,
    {{report::hidden(report::kLayer), &WindowedLayer::layer},
     {report::kWindow, &WindowedLayer::window},
     {{"model_layers", "layers", "layers of the model that it stands for"},
      &WindowedLayer::model_layers},
     {report::kSeconds, [](Of of) { return of.total().seconds; }},
     {report::kFlops, [](Of of) { return of.total().flops; }},
     {report::kBytes, [](Of of) { return of.total().bytes; }}}};

std::string text_of(const std::vector<WindowedLayer>& windowed) {
    Windows windows;
    for (Of of : windowed) windows[of.window].push_back(of.layer);
    return windows_text(windows);
}

}  // namespace

std::vector<int64_t> all_layers(const std::vector<int64_t>& layers,
                                const std::vector<WindowedLayer>& windowed) {
    std::vector<int64_t> all = layers;
    for (const WindowedLayer& of : windowed) all.push_back(of.layer);
    std::ranges::sort(all);
    return all;
}

std::vector<io::LayerInfo> pick_without_window(RunOptions& o, const io::ActivationsReader& file,
                                               std::vector<WindowedLayer>& windowed,
                                               std::ostream& err) {
    std::vector<io::LayerInfo> layers = pick_layers(o, file, err);
    std::erase_if(layers, [&](const io::LayerInfo& layer) {
        const std::optional<int64_t> window = layer.window();
        if (window) windowed.push_back({.layer = layer.layer, .window = *window, .cost = {}});
        return window.has_value();
    });
    o.layers.clear();
    for (const io::LayerInfo& layer : layers) o.layers.push_back(layer.layer);
    require(!layers.empty(), file.name(), ": ", text_of(windowed),
            ": each chosen layer keeps its window, and none is left to select blocks");
    if (!windowed.empty()) err << "note: " << text_of(windowed) << ": left so, at its own cost\n";
    return layers;
}

void resolve_pricing(PricingOptions& o, const io::ActivationsInfo& info,
                     const std::vector<int64_t>& measured, std::vector<WindowedLayer>& windowed) {
    const std::vector<int64_t> apart = all_layers({}, windowed);
    const int64_t all = model_layers(info, all_layers(measured, windowed)).value_or(0),
                  alike = model_layers(info, apart).value_or(0);
    int64_t with_window = std::ssize(apart);
    if (all == model_layers(info, measured).value_or(0) + alike)  // they are kinds of their own
        with_window = std::max(with_window, alike);
    for (WindowedLayer& of : windowed)
        of.model_layers = static_cast<double>(with_window) / static_cast<double>(apart.size());
    resolve_pricing(o, info, std::ssize(measured), all - with_window);
}

std::vector<Unit> windowed_units(const io::ActivationsReader& file,
                                 const std::vector<WindowedLayer>& windowed,
                                 const PricingOptions& o, const analysis::Hardware& on) {
    std::vector<Unit> units;
    for (const WindowedLayer& of : windowed)
        units.push_back(
            {concat("layer ", of.layer), [&file, &o, &on, of](const Worker&, io::UnitWriter& to) {
                 const std::string group = concat(kGroup, "/", of.layer);
                 const Pricer price(file.layer(of.layer), o.context.value(), o.decode, on);
                 to.attribute(group, "window", of.window);
                 to.attribute(group, "model_layers", of.model_layers);
                 write_price(to, group, "dense", price.dense());
             }});
    return units;
}

std::vector<WindowedLayer> read_windowed(const io::ResultsReader& results) {
    std::vector<WindowedLayer> windowed;
    if (!results.has(kGroup)) return windowed;
    for (const std::string& name : results.list(kGroup)) {
        const std::string group = concat(kGroup, "/", name);
        windowed.push_back({.layer = std::stoll(name),
                            .window = static_cast<int64_t>(results.number(group, "window")),
                            .model_layers = results.number(group, "model_layers"),
                            .cost = read_cost(results, group, "dense")});
    }
    return windowed;
}

Cost cost_of(const std::vector<WindowedLayer>& windowed) {
    Cost all;
    for (const WindowedLayer& of : windowed) all = all + of.total();
    return all;
}

report::Shape windowed_shape() { return kTable.shape(); }

report::Table windowed_table(const std::vector<WindowedLayer>& windowed) {
    return kTable.of(windowed);
}

std::string windowed_note(const std::vector<WindowedLayer>& windowed) {
    if (windowed.empty()) return "";
    double layers = 0;
    for (const WindowedLayer& of : windowed) layers += of.model_layers;
    std::string text = text_of(windowed);
    text.front() = 'L';
    return concat(text, windowed.size() == 1 ? " and keeps it" : " and keep it",
                  ": dense attention over it, ", time_text(cost_of(windowed).seconds), " for ",
                  number_text(layers), layers == 1 ? " layer" : " layers",
                  " of the model, is part of every time of all layers.");
}

}  // namespace msa::experiments
