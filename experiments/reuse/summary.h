// SPDX-License-Identifier: MIT
// Output of msa-reuse.
#pragma once

#include <iosfwd>
#include <string>

#include "experiments/reuse/sharing.h"

namespace msa::experiments::reuse {

/// Text of each number of the summary, JSON object.
std::string reuse_definitions();

/// summary.json: {"format", "program", "options", "definitions", "target", "seed", "draws",
/// "is_bound", "layers", "missing_layers", "queries", "sequences", "references", "pairs": [...],
/// "distances": [...], "own", "patterns": [...], "front": [...], "each", "mean", "dense"}. An
/// estimate is {"value", "low", "high"}.
std::string reuse_summary(const Findings&, const io::RunRecord&);

/// The page: loss by distance, the requested patterns, the best ones.
void print_findings(const Findings&, const io::RunRecord&, std::ostream& out);

/// Why no pattern reaches the target, and the nearest one; empty if one does.
std::string nearest_text(const Findings&);

}  // namespace msa::experiments::reuse
