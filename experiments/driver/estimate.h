// SPDX-License-Identifier: MIT
// Estimates, times and layers in words.
#pragma once

#include <string>
#include <vector>

#include "analysis/bootstrap.h"

namespace msa::experiments {

inline constexpr int64_t kDraws = 1000;  // of the bootstrap

/// "0.9500 [0.9400, 0.9600]"
std::string text_of(const analysis::Estimate&);
/// "12.5 us"
std::string time_text(double seconds);
/// "0, 3, 6"
std::string list_text(const std::vector<int64_t>& numbers);
/// "layer 3", "layers 0, 3"
std::string layers_text(const std::vector<int64_t>& layers);

}  // namespace msa::experiments
