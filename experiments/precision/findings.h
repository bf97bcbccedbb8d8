// SPDX-License-Identifier: MIT
// The findings of msa-precision, computed from results.h5 alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/io/results.h"
#include "core/number/quantize.h"
#include "experiments/measure/numbers_by_metric.h"
#include "experiments/measure/sinks.h"
#include "experiments/precision/options.h"

namespace msa::experiments::precision {

/// Beside the numbers of the list (measure/accumulators.h): of ids precision_recall, mass_share and
/// recall_share, of the cache dense_error, mass_share and sparse_error.
using measure::NumbersByMetric;

/// One precision on the layers of its part.
struct Row {
    Precision precision;
    bool rounded_product = false;  // of projections
    bool asked = true;             // false: full precision, where --formats leaves f32 out
    double bits = 0;               // per token of one layer, mean over the part's averaged ones
    double bits_per_value = 0;
    std::string computed_in;              // "f32"
    std::vector<NumbersByMetric> layers;  // in the order of the part's
    NumbersByMetric mean;                 // over the averaged ones, as the worst one is
    double worst_layer = 0;               // of the worst targeted metric, see Part::worst
    bool reaches = false;                 // the worse end of the mean's interval reaches the target
    // Among the rows asked for: the best of those with the fewest bits that reach the target, and
    // the one whose worst targeted measure is best.
    bool is_recommended = false, is_nearest = false;

    /// "f16, rounded product"
    std::string name() const;
};

/// The index operands, the index projections, or the KV cache.
struct Part {
    std::string name, words;                // "index", "index operands"
    bool of_weights = false;                // bits are those of a weight
    std::vector<int64_t> layers, averaged;  // those that means are over: averaged_layers()
    std::vector<Row> rows;                  // full precision first
    double bound = 0;                       // of the target
    bool at_least = true;  // the targeted metrics must be at least the bound; else at most
    std::vector<std::string> targeted;
    /// The targeted metric with the worst mean in a row.
    const std::string& worst(const Row&) const;
    /// None where no row reaches the target.
    const Row* recommended() const;
    const Row& nearest() const;
    /// "mass_share and recall_share of at least 0.99"
    std::string target_text() const;
};

struct Findings {
    PrecisionOptions asked;
    uint64_t seed = 0;
    std::optional<Part> index;        // of the layers with an Index Branch
    std::optional<Part> projections;  // with --indexer; row 0 is that of the operands
    Part cache;
    std::vector<measure::Sink> sinks;                // at full precision
    int64_t queries = 0, blocks = 0, sequences = 0;  // largest of any layer
};

Findings make_findings(const io::ResultsReader&);

/// The tables index, projections, cache, the same with _layers behind, measured and dropped_sinks.
/// Those of a part that was not measured are empty.
report::Report make_report(const io::ResultsReader&);

}  // namespace msa::experiments::precision
