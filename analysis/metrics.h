// SPDX-License-Identifier: MIT
// The table of all metrics that programs report: name in files, definition, unit, and column
// heading. Summaries, datasets, tables and notebooks take them from here.
#pragma once

#include <span>
#include <string_view>

namespace msa::analysis {

struct Metric {
    const char* name;     // in results files and summaries
    const char* heading;  // of its column in a table
    const char* unit;
    const char* axis;  // what one value is of, before averaging
    const char* definition;
};

/// All metrics, in the order of the documentation.
std::span<const Metric> list_metrics();
/// Throws std::logic_error if there is none of that name.
const Metric& metric(std::string_view name);

}  // namespace msa::analysis
