// SPDX-License-Identifier: MIT
// Output of msa-precision.
#pragma once

#include <iosfwd>
#include <string>

#include "experiments/precision/findings.h"

namespace msa::experiments::precision {

/// Text of each number of the summary, JSON object.
std::string precision_definitions();

/// summary.json: {"format", "program", "options", "definitions", "target", "seed", "draws",
/// "queries", "blocks_of_queries", "sequences", "index", "cache"}. A part is {"layers", "measures",
/// "rows": [...], "recommended", "nearest"}, the last two numbers of rows; "index" is null where no
/// layer has an Index Branch. An estimate is {"value", "low", "high"}.
std::string precision_summary(const Findings&, const io::RunRecord&);

/// The page: a table per part, notes, and the recommendation at the end.
void print_findings(const Findings&, const io::RunRecord&, std::ostream& out);

/// For parts whose target no format reaches: the nearest format. Empty if all targets are reached.
std::string nearest_text(const Findings&);

}  // namespace msa::experiments::precision
