// SPDX-License-Identifier: MIT
// Selects the layers of a run over activations, and writes their metadata.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <utility>
#include <vector>

#include "core/io/activations.h"
#include "core/io/results.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments {

/// The layers of o.layers; if that is empty, it becomes all layers of the file. Warns on `err` if a
/// model's own attention has more than the window, soft cap and sinks that programs compute.
/// InputError if the file lacks a layer, or has its q and k before RoPE.
std::vector<io::LayerInfo> pick_layers(RunOptions& o, const io::ActivationsReader&,
                                       std::ostream& err);

using Sizes = std::vector<std::pair<const char*, int64_t>>;
/// Writes the group /layers/<l>: heads and channels of `p`, then `more`, as attributes; also the
/// attribute `softmax_scale` and, if the layer has them, `window`, `softcap` and the dataset
/// `sinks` [Hq].
void write_layer(io::UnitWriter&, const io::LayerInfo&, const Problem& p, const Sizes& more);

}  // namespace msa::experiments
