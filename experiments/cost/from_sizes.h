// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <set>

#include "analysis/hardware.h"
#include "experiments/cost/options.h"

namespace msa::experiments::cost {

/// The model of --preset, with sizes replaced by options.
Model model_of(const CostOptions&);
/// The sizes of one of its layers over `tokens`. InputError if there are fewer than k blocks.
analysis::LayerSizes sizes_of(const CostOptions&, const Model&, int64_t tokens);

/// Prints the cost of a model's layer at every context: prefill and decode, stage by stage.
void cost_from_sizes(const CostOptions&, const analysis::Hardware&, std::ostream& out);

/// Name, ceilings and cache; what is unknown is null.
nlohmann::ordered_json hardware_json(const analysis::Hardware&, Ceilings);

/// "NVIDIA H100 (published peaks): bf16 989.4 TFLOP/s, memory 3.35 TB/s"
std::string hardware_text(const analysis::Hardware&, Ceilings, const std::set<Element>& used);

/// Prints the cost of sparse attention on the selected blocks of a results file. Throws InputError
/// if its queries have gaps, since the loop orders depend on neighbouring queries.
void cost_from_results(const CostOptions&, const analysis::Hardware&, std::ostream& out);

/// Prints the time of a model's layer that is divided among GPUs, at every context: prefill and
/// decode (analysis/over_gpus.h).
void cost_over_gpus(const CostOptions&, const analysis::Hardware&, std::ostream& out);

}  // namespace msa::experiments::cost
