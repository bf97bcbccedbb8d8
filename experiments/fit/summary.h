// SPDX-License-Identifier: MIT
// Output of msa-fit-indexer, computed from its results alone.
#pragma once

#include <iosfwd>
#include <string>

#include "core/io/results.h"

namespace msa::experiments::fit {

/// Text of each number of the summary, JSON object; `note` on top_k, where there is one.
std::string fit_definitions(const std::string& note);

/// summary.json: {"format", "program", "options", "definitions", "rows": [...]}, one row per layer:
/// the last evaluation, with the split that it was made on. A number without a counted row is null.
std::string fit_summary_json(const io::ResultsReader&);

/// rows.csv: the first and the last evaluation of every layer, and their layer and step.
std::string fit_rows_csv(const io::ResultsReader&);

/// The same as a table, with definitions.
void print_fit_table(const io::ResultsReader&, std::ostream& out);

}  // namespace msa::experiments::fit
