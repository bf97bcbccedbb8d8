// SPDX-License-Identifier: MIT
// Which RoPE a model has: as the options say, as the capture stored it, or as the model's
// configuration in the capture gives it by formula (core/rope.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/indexer/index_branch.h"
#include "core/io/activations.h"
#include "core/rope.h"
#include "experiments/fit/options.h"

namespace msa::experiments::fit {

/// Frequencies of the pairs that the layer's RoPE rotates; empty where it has none. Throws
/// InputError naming the options to give where neither they nor the file say.
std::vector<double> model_frequencies(const FitOptions&, const io::ActivationsReader&,
                                      int64_t layer);

/// The Index Branch that the options ask for on a layer, with every so many of these frequencies.
IndexForm index_form(const FitOptions&, const io::ActivationsReader&, int64_t layer);

/// What a configuration (JSON text of a model's config.json, or of its rope_parameters alone) says
/// of RoPE; nothing where it says nothing. InputError for a type that is not known.
std::optional<RopeParameters> parse_rope(const std::string& json, int64_t head_dim);

}  // namespace msa::experiments::fit
