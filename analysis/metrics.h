// SPDX-License-Identifier: MIT
// Every metric that the programs report, once: what it is called in files, what it means, its unit,
// and how it stands in a table. Summaries, datasets, tables and notebooks take it from here.
#pragma once

#include <span>
#include <string_view>

namespace msa::analysis {

struct Metric {
    const char* name;     // in results files and summaries
    const char* heading;  // of its column in a table
    const char* unit;
    const char* axis;  // what its values are one of, before they are averaged
    const char* definition;
};

/// In the order of the documentation.
std::span<const Metric> list_metrics();
/// Throws std::logic_error where there is none of that name.
const Metric& metric(std::string_view name);

}  // namespace msa::analysis
