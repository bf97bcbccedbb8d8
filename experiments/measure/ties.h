// SPDX-License-Identifier: MIT
// How narrowly choices decide (analysis/tie_margin.h): sums, metrics, and what pages say of them.
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/io/results.h"
#include "experiments/driver/metrics.h"
#include "experiments/measure/measure.h"

namespace msa::experiments::measure {

inline constexpr const char* kTies[] = {"tied", "tied_by_rounding", "all_tied"};

/// Adds a choice's ties on a chunk to the tally, from its scores.
void add_ties(const MeasuredChunk&, const Choice&, View<const float, 3> scores, Tally& to);

/// Writes the metrics kTies of a choice, NaN where its scores are not known.
void write_ties(const Tally&, const std::string& key, int64_t groups, Metrics& to);

/// Adds {layer, selector, kTies}, and `setting` unless it is empty, to the `ties` of a summary,
/// from the choice's group of metrics.
void read_ties(const io::ResultsReader&, const std::string& group, const std::string& layer,
               const std::string& selector, const std::string& setting, nlohmann::ordered_json& to);

/// Of a choice on a layer: shares of the counted queries with a choice to make, NaN without any.
struct Tie {
    int64_t layer = 0;
    std::string choice;  // "quest", or with its setting "quest@128"
    double tied = 0, by_rounding = 0, all = 0;
};
/// A paragraph for each choice that block ids decide rather than scores.
std::string ties_text(const std::vector<Tie>&);

/// Prints a sentence for each choice that block ids decide rather than scores.
void print_ties(const nlohmann::ordered_json& ties, std::ostream& out);

}  // namespace msa::experiments::measure
