// SPDX-License-Identifier: MIT
// The findings of msa-precision, computed from results.h5 alone.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/io/results.h"
#include "core/number/quantize.h"
#include "experiments/measure/drawn.h"
#include "experiments/precision/options.h"

namespace msa::experiments::precision {

using measure::Kept;  // in the order of a Part's measures

/// One precision on the layers of its part.
struct Row {
    Precision precision;
    bool rounded_product = false;  // of projections
    bool asked = true;             // false: full precision, where --formats leaves f32 out
    double bits = 0;               // per token of one layer, mean over the layers
    double bits_per_value = 0;
    std::string computed_in;   // "f32"
    std::vector<Kept> layers;  // in the order of the part's
    Kept mean;                 // over the layers
    bool reaches = false;      // the worse end of the mean's interval reaches the target

    /// "f16, rounded product"
    std::string name() const;
};

/// The index operands, the index projections, or the KV cache.
struct Part {
    std::string name, words;            // "index", "index operands"
    bool of_weights = false;            // bits are those of a weight
    std::vector<std::string> measures;  // names in files
    std::vector<int64_t> layers;
    std::vector<Row> rows;  // full precision first
    double bound = 0;       // of the target
    bool at_least = true;   // the targeted measures must be at least the bound; else at most
    std::vector<size_t> targeted;
    /// Among the rows asked for: the best of those with the fewest bits that reach the target. If
    /// none does, the nearest.
    std::optional<size_t> recommended;
    size_t nearest = 0;

    /// The targeted measure with the worst mean in a row, and its value in the worst layer.
    size_t worst_measure(const Row&) const;
    double worst_layer(const Row&) const;
    /// "mass_share and recall_share of at least 0.99"
    std::string target_text() const;
};

struct Findings {
    PrecisionOptions asked;
    uint64_t seed = 0;
    std::optional<Part> index;        // of the layers with an Index Branch
    std::optional<Part> projections;  // with --indexer; row 0 is that of the operands
    Part cache;
    // At full precision, see driver/sink_note.h.
    nlohmann::ordered_json dropped_sinks = nlohmann::ordered_json::array();
    int64_t queries = 0, blocks = 0, sequences = 0;  // largest of any layer
};

Findings make_findings(const io::ResultsReader&);

/// Text of each number of the summary, JSON object.
std::string precision_definitions();

/// summary.json: {"format", "program", "options", "definitions", "target", "seed", "draws",
/// "queries", "blocks_of_queries", "sequences", "index", "projections", "cache"}. A part is
/// {"layers", "measures", "rows": [...], "recommended", "nearest"}, the last two numbers of rows;
/// "index" is null where no layer has an Index Branch, "projections" without --indexer or formats
/// for it. An estimate is {"value", "low", "high"}.
std::string precision_summary(const Findings&, const io::RunRecord&);

/// The page: a table per part, notes, and the recommendation at the end.
void print_findings(const Findings&, const io::RunRecord&, std::ostream& out);

/// For parts whose target no format reaches: the nearest format. Empty if all targets are reached.
std::string nearest_text(const Findings&);

}  // namespace msa::experiments::precision
