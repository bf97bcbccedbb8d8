// SPDX-License-Identifier: MIT
// Output of msa-advise.
#pragma once

#include <iosfwd>
#include <string>

#include "experiments/advise/advice.h"

namespace msa::experiments::advise {

/// Text of each number of the summary, JSON object.
std::string advise_definitions();

/// summary.json: {"format", "program", "options", "definitions", "target", "sampling",
/// "recommended", "nearest", "why_none", "dense", "bound", "front": [...], "layers": [...],
/// "settings": [...]}. An estimate is {"value", "low", "high"}.
std::string advise_summary(const Advice&, const io::RunRecord&);

/// The page: the setting with its intervals, the Pareto front, the layers.
void print_advice(const Advice&, const io::RunRecord&, std::ostream& out);

/// Why no setting reaches the target, and the nearest one; empty where one is recommended.
std::string nearest_text(const Advice&);

}  // namespace msa::experiments::advise
