// SPDX-License-Identifier: MIT
// Selects the layers of a run over activations, and writes their metadata.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/io/activations.h"
#include "core/io/results.h"
#include "experiments/driver/option_table.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments {

/// The layers of o.layers; if that is empty, it becomes all layers of the file. Warns on `err` if a
/// model's own attention has more than the window, soft cap and sinks that programs compute.
/// InputError if the file lacks a layer, or has its q and k before RoPE.
std::vector<io::LayerInfo> pick_layers(RunOptions& o, const io::ActivationsReader&,
                                       std::ostream& err);

/// Layers of the model that are of the kinds of `layers`, as model_config says; nothing where it
/// does not.
std::optional<int64_t> model_layers(const io::ActivationsInfo&, std::span<const int64_t> layers);
/// Layers of the model that have no attention, by kind, as model_config says.
std::map<std::string, std::vector<int64_t>> without_attention(const io::ActivationsInfo&);
/// --model-layers: the number of the model's layers that the measured ones stand for.
void add_model_layers(OptionTable&, std::optional<int64_t>&);

using Sizes = std::vector<std::pair<const char*, int64_t>>;
/// Writes the group /layers/<l>: heads and channels of `p`, then `more`, as attributes; also the
/// attribute `softmax_scale` and, if the layer has them, `window`, `softcap` and the dataset
/// `sinks` [Hq].
void write_layer(io::UnitWriter&, const io::LayerInfo&, const Problem& p, const Sizes& more);

/// The attention that a program computes: plain causal attention, or with the layer's window, soft
/// cap and sinks.
enum class Computed : uint8_t { plain, with_window_cap_and_sinks };

/// Warns on `err` if the model's attention differs from what the program computes.
void warn_of_own_attention(const io::ActivationsReader&, int64_t layer, Computed,
                           std::ostream& err);

/// Sinks in the backend's space; absent stays absent.
class Sinks {
public:
    Sinks(Backend& backend, View<const float, 1> host) {
        if (host) there_ = backend.upload(host);
    }
    View<const float, 1> view() const { return there_.view(); }
    operator View<const float, 1>() const { return view(); }

private:
    Tensor<float, 1> there_;
};

}  // namespace msa::experiments
