// SPDX-License-Identifier: MIT
// The small files beside the results.h5 of msa-compare. They are computed from it alone, so a
// resumed and an uninterrupted run give the same, except timing.json.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "experiments/compare/rows.h"

namespace msa::experiments::compare {

/// Text of each number of the summary, JSON object.
std::string compare_definitions();

/// summary.json: {"format", "program", "options", "definitions", "checks", "rows": [...],
/// "layer_overlap": [...]}; one row per layer, selector and setting.
std::string compare_summary(const io::ResultsReader&, const std::vector<LayerRows>&);

/// metrics.csv, tidy: layer,selector,setting,budget,block_size,metric,axis,index,value.
std::string compare_csv(const io::ResultsReader&, const std::vector<LayerRows>&);

/// timing.json: seconds of each selector's selection and measurement on each layer, from run.json.
/// Has no layers if run.json is missing.
std::string compare_timing(const std::filesystem::path& run_json);

/// The page: mass kept and output error of every selector and setting, costs, checks, definitions.
void print_compare_tables(const io::ResultsReader&, const std::vector<LayerRows>&,
                          std::ostream& out);

/// Throws std::logic_error if a selector keeps more mass on average than the oracle of its budget,
/// or more than 1. Policies that spend the budget unevenly are checked by row (SelfChecks).
void check_compare_order(const io::ResultsReader&, const std::vector<LayerRows>&);

}  // namespace msa::experiments::compare
