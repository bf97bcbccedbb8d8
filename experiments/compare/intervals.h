// SPDX-License-Identifier: MIT
// 95 % intervals of msa-compare's averages, by the bootstrap over blocks of neighbouring queries.
// All configs of a layer use the same draws, so differences are paired.
#pragma once

#include <string>
#include <vector>

#include "analysis/bootstrap.h"
#include "experiments/compare/rows.h"
#include "experiments/measure/drawn.h"

namespace msa::experiments::compare {

/// Intervals of one config on one layer. `best`: the candidate (Row::is_candidate) with the highest
/// mass_kept at this setting; empty if there is none.
struct Sure {
    analysis::Estimate mass, error;  // values over all counted queries
    std::string best;
    analysis::Estimate behind;  // mass_kept of `best` minus that of the config
    bool is_candidate = false;

    /// Whether it is a candidate and the interval of the difference contains 0.
    bool like_the_best() const { return is_candidate && behind.low <= 0 && behind.high >= 0; }
};

/// For each of `rows`, all of one layer. Intervals are NaN if fewer than two blocks of queries
/// count, or if the mass is NaN.
std::vector<Sure> measure_sureness(const io::ResultsReader&, const std::vector<Row>& rows);

}  // namespace msa::experiments::compare
