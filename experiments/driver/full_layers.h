// SPDX-License-Identifier: MIT
// Layers with a sliding window, in programs that measure what could be sparse: msalab leaves such a
// layer as it is.
#pragma once

#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/io/activations.h"
#include "core/io/results.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments {

inline constexpr const char* kFullLayersHelp =
    "layers; default: all without a sliding window, as only these can be made sparse";

/// pick_layers(), but without --layers it takes only the layers that have no sliding window, or all
/// if each has one. A note on `err` names the layers that have one.
std::vector<io::LayerInfo> pick_full_layers(RunOptions& o, const io::ActivationsReader&,
                                            std::ostream& err);

/// Layers by their window.
using Windows = std::map<int64_t, std::vector<int64_t>>;
/// "layers 0, 1 attend to a sliding window of 512 tokens"; empty without any.
std::string windows_text(const Windows&);

/// The window of a layer: the attribute `window` of its group in results; nothing without one.
std::optional<int64_t> recorded_window(const io::ResultsReader&, const std::string& group);
/// The layers that means are taken over: of `layers`, ascending, those without a window, or all if
/// each has one.
std::vector<int64_t> averaged_layers(const io::ResultsReader&, const std::vector<int64_t>& layers);
/// Says which layers under `parent` have a window, and what their recall is worth; empty if none
/// has one.
std::string windows_note(const io::ResultsReader&, const std::string& parent);

}  // namespace msa::experiments
