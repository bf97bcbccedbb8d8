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

/// pick_layers(), where the layers that nobody named are those without a sliding window; where all
/// have one, all. A note on `err` names those that have one.
std::vector<io::LayerInfo> pick_full_layers(RunOptions& o, const io::ActivationsReader&,
                                            std::ostream& err);

/// Layers by their window.
using Windows = std::map<int64_t, std::vector<int64_t>>;
/// "layers 0, 1 attend to a sliding window of 512 tokens"; empty without any.
std::string windows_text(const Windows&);

/// The window of a layer, as results have it in the attribute `window` of its group; nothing
/// without one.
std::optional<int64_t> recorded_window(const io::ResultsReader&, const std::string& group);
/// Of these layers of a run, ascending, those that means are over: those without a window; all
/// where each has one.
std::vector<int64_t> averaged_layers(const io::ResultsReader&, const std::vector<int64_t>& layers);
/// What that means for the numbers; empty where no layer has one.
std::string windows_note(const io::ResultsReader&, const std::string& parent);

}  // namespace msa::experiments
