// SPDX-License-Identifier: MIT
// A model's RoPE: from the options, from the capture's attributes, or by formula (core/rope.h) from
// the model's configuration in the capture.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/indexer/index_branch.h"
#include "core/io/activations.h"
#include "core/rope.h"
#include "experiments/fit/options.h"

namespace msa::experiments::fit {

inline constexpr double kSameFrequency = 1e-9;  // how far frequencies that are one may differ

/// Frequencies of the pairs that the layer's RoPE rotates; empty if it has none. If neither the
/// options nor the file give them, throws InputError naming the options to set.
std::vector<double> model_frequencies(const FitOptions&, const io::ActivationsReader&,
                                      int64_t layer);

/// The form of the indexer that the options request for a layer, with an evenly spaced subset of
/// these frequencies, unless chooses_pairs: then without frequencies, which choose_pairs
/// (experiments/fit/start.h) gives it.
IndexForm index_form(const FitOptions&, const io::ActivationsReader&, int64_t layer);

/// Whether the pairs of the index are to be chosen among those of the model, which has more, by
/// their energy.
bool chooses_pairs(const FitOptions&, const IndexForm&, std::span<const double> model);

/// RoPE parameters of a configuration (JSON text of a model's config.json, or of its
/// rope_parameters); nothing if it has none. InputError for an unknown type.
std::optional<RopeParameters> parse_rope(const std::string& json, int64_t head_dim);

}  // namespace msa::experiments::fit
