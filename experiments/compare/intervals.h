// SPDX-License-Identifier: MIT
// How sure the averages of msa-compare are: 95 % intervals of the bootstrap over blocks of
// neighbouring queries. All configs of a layer see the same draws, so that differences are paired.
#pragma once

#include <string>
#include <vector>

#include "analysis/bootstrap.h"
#include "experiments/compare/rows.h"
#include "experiments/measure/drawn.h"

namespace msa::experiments::compare {

/// One config on one layer. `best`: the selector of the highest mass_kept at this setting among
/// the candidates (Row::is_candidate); empty where none does.
struct Sure {
    analysis::Estimate mass, error;  // values over all counted queries
    std::string best;
    analysis::Estimate behind;  // mass_kept of `best` less the config's
    bool is_candidate = false;

    /// Is it a candidate, and does the interval of the difference hold 0?
    bool like_the_best() const { return is_candidate && behind.low <= 0 && behind.high >= 0; }
};

/// Of each of `rows`, which are all of one layer. Intervals are NaN where less than two blocks of
/// queries are counted, or the mass is NaN.
std::vector<Sure> measure_sureness(const io::ResultsReader&, const std::vector<Row>& rows);

}  // namespace msa::experiments::compare
