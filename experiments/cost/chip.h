// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>
#include <set>

#include "analysis/hardware.h"
#include "experiments/cost/options.h"

namespace msa::experiments::cost {

/// Name, ceilings and cache; what is unknown is null.
nlohmann::ordered_json hardware_json(const analysis::Hardware&, Ceilings);

/// "NVIDIA H100 (published peaks): bf16 989.4 TFLOP/s, memory 3.35 TB/s"
std::string hardware_text(const analysis::Hardware&, Ceilings, const std::set<Element>& used);

}  // namespace msa::experiments::cost
