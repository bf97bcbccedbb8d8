// SPDX-License-Identifier: MIT
// A layer of the results from what its parts have stored (layer.h).
#pragma once

#include <filesystem>
#include <vector>

#include "core/io/unit_writer.h"

namespace msa::experiments::compare {

/// Writes the datasets of a layer, given the files of all its parts in the order of the queries:
/// ids one behind the other, sums joined in that order. The activations are not needed.
void join_layer(const std::vector<std::filesystem::path>& parts, io::UnitWriter& to);

}  // namespace msa::experiments::compare
