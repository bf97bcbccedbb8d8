// SPDX-License-Identifier: MIT
// The findings of msa-analyze, computed from results.h5 alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/io/results.h"
#include "experiments/driver/weak_indexers.h"
#include "experiments/measure/numbers_by_metric.h"
#include "experiments/report/report.h"

namespace msa::experiments::analyze {

/// By head, with the ties of the scores and with entropies.
inline constexpr measure::Measured kMeasured{.ties = true, .entropies = true};

/// A selector on a layer.
struct Row {
    int64_t layer = 0;
    std::string selector;  // its label
    measure::NumbersByMetric kept;
    std::optional<int64_t> window;  // the layer's sliding window
    int64_t counted = 0, trivial = 0, dead_heads = 0;
    int64_t blocks = 0, sequences = 0;  // of the counted queries
};

struct Findings {
    std::vector<Row> rows;  // by layer, then by selector
    std::vector<WeakIndexer> weak;
    std::string intervals;  // how the intervals were drawn, or why there are none
};
Findings make_findings(const io::ResultsReader&);

/// metrics.csv, tidy: layer,selector,metric,axis,index,value.
std::string metrics_csv(const io::ResultsReader&);

/// Throws std::logic_error if a selector keeps more mass than the oracle, or more than 1, by more
/// than the rounding of the layer's masses (core/tolerance.h).
void check_mass_bounds(const io::ResultsReader&, const Findings&);

/// The tables selectors, weak_indexers and dropped_sinks.
report::Report make_report(const io::ResultsReader&, const Findings&);
/// Texts of the columns; `note` on top_k, where there is one.
std::string definitions_with(const std::string& note);

}  // namespace msa::experiments::analyze
