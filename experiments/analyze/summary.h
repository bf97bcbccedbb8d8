// SPDX-License-Identifier: MIT
// The small files beside results.h5. They are computed from it alone, so a resumed and an
// uninterrupted run give the same.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>

#include "core/io/results.h"

namespace msa::experiments::analyze {

/// Text of each number of the summary, JSON object; `note` on top_k, where there is one.
std::string metric_definitions(const std::string& note);

/// summary.json: {"format", "program", "options", "definitions", "rows": [...]}, one row per layer
/// and selector; a number that has no counted row is null.
std::string summary_json(const io::ResultsReader&);

/// metrics.csv, tidy: layer,selector,metric,axis,index,value.
std::string metrics_csv(const io::ResultsReader&);

/// The summary as a table with its definitions.
void print_table(const io::ResultsReader&, std::ostream& out);

/// Throws std::logic_error if a selector keeps more mass than the oracle, or more than 1, by more
/// than the rounding of the layer's masses (core/tolerance.h).
void check_mass_bounds(const io::ResultsReader&);

}  // namespace msa::experiments::analyze
