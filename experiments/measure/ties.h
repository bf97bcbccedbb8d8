// SPDX-License-Identifier: MIT
// How narrowly choices decide (analysis/tie_margin.h): sums, metrics, and what pages say of them.
#pragma once

#include <string>
#include <vector>

#include "core/io/results.h"
#include "experiments/driver/metrics.h"
#include "experiments/measure/measure.h"

namespace msa::experiments::measure {

/// Adds a choice's ties on a chunk to the tally, from its scores.
void add_ties(const MeasuredChunk&, const Choice&, View<const float, 3> scores, Tally& to);

/// Writes the metrics tied, tied_by_rounding and all_tied of a choice, NaN where its scores are not
/// known.
void write_ties(const Tally&, const std::string& key, int64_t groups, Metrics& to);

/// The ties of a choice on a layer, as shares of the counted queries that have a choice to make;
/// NaN if none has.
struct Tie {
    int64_t layer = 0;
    std::string choice;  // "quest", or with its setting "quest@128"
    double tied = 0, by_rounding = 0, all = 0;
};
/// A paragraph for each choice that block ids decide rather than scores.
std::string ties_text(const std::vector<Tie>&);

}  // namespace msa::experiments::measure
