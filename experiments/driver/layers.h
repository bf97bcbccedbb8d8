// SPDX-License-Identifier: MIT
// The layers of a run over activations: which they are, and what results say of them.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <utility>
#include <vector>

#include "core/io/activations.h"
#include "core/io/results.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments {

/// Those of o.layers, which becomes all of the file where it is empty. Says on `err` where a
/// model's own attention is not the one with window, soft cap and sinks that programs compute.
/// InputError where the file lacks a layer, or has its q and k before the rotary embedding.
std::vector<io::LayerInfo> pick_layers(RunOptions& o, const io::ActivationsReader&,
                                       std::ostream& err);

using Sizes = std::vector<std::pair<const char*, int64_t>>;
/// Writes the group /layers/<l>: heads and channels of `p`, then `more`, as attributes; and of its
/// attention the attribute `softmax_scale` and, where the layer has them, `window`, `softcap` and
/// the dataset `sinks` [Hq].
void write_layer(io::UnitWriter&, const io::LayerInfo&, const Problem& p, const Sizes& more);

}  // namespace msa::experiments
