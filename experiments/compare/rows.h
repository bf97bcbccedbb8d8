// SPDX-License-Identifier: MIT
// What the results of msa-compare say: made from results.h5 alone. Intervals are those of the
// bootstrap; all configs of a layer see the same draws, so that differences are paired.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/bootstrap.h"
#include "core/io/results.h"
#include "experiments/measure/numbers_by_metric.h"
#include "experiments/report/report.h"

namespace msa::experiments::compare {

/// By group, with the ties of the scores.
inline constexpr measure::Measured kMeasured{.error_of = measure::ErrorOf::group, .ties = true};

/// The numbers of a row: attributes of the config's metrics. Measures are metrics of
/// analysis/metrics.h.
inline constexpr const char* kSizes[] = {"budget",       "block_size",   "top_k",
                                         "forced_first", "forced_local", "matched_budget",
                                         "rows_counted", "dead_groups",  "tokens_allowed"};
inline constexpr const char* kMeasures[] = {
    "blocks_kept",     "tokens_read",        "mass_kept",       "oracle_mass", "score_recall",
    "block_recall",    "group_output_error", "index_flops",     "index_bytes", "attention_flops",
    "attention_bytes", "sink_mass_dense",    "sink_mass_sparse"};

/// One config on one layer.
struct Row {
    std::string layer, key, selector, setting, family, kind;
    std::map<std::string, int64_t> sizes = {};
    std::map<std::string, double> measures = {};

    measure::NumbersByMetric kept = {};  // with intervals
    /// The selector of the highest mass kept at this setting among the candidates; empty where
    /// there is none. behind: its mass kept less the row's.
    std::string best = {};
    analysis::Estimate behind = {NAN, NAN, NAN};

    int64_t number() const { return std::stoll(layer); }
    std::string group() const { return "/metrics/" + key + "/" + layer; }
    int64_t budget() const { return sizes.at("budget"); }
    double mass_kept() const { return measures.at("mass_kept"); }
    /// The ablation's part of the setting, without the budget.
    std::string variant() const;
    /// The setting with which it is compared: a window of equal budget is compared with the
    /// selectors of that budget.
    std::string compared_setting() const;
    /// Whether it reads more tokens than its budget allows.
    bool over_budget() const;
    /// Whether it can be the best of its setting. Excluded: oracles, rows over budget, rows with
    /// their own budget, rows without counted queries.
    bool is_candidate() const;
    /// "best", "=" where it is a candidate not distinguishable from the best, or nothing.
    std::optional<std::string> standing() const;
    std::optional<std::string> best_selector() const;
};

/// A layer's rows, by selector in the order of their documentation, then by budget and setting.
struct LayerRows {
    std::string layer;
    std::vector<Row> rows = {};
    /// Notes on the policies, and on which layer is the previous one.
    std::vector<std::string> notes = {};
    std::optional<int64_t> window = {};  // the layer's sliding window
    int64_t tokens = 0, queries = 0, largest_budget = 0;
    int64_t blocks = 0, sequences = 0;  // of the counted queries
    // What was checked (measure/checks.h).
    int64_t rows_checked = 0, rows_with_all_blocks = 0, rows_undefined = 0;
    double difference = 0, mass_bound = 0;
};
std::vector<LayerRows> read_rows(const io::ResultsReader&);

/// The tables layers, selectors, windows, layer_overlaps and dropped_sinks.
report::Report make_report(const io::ResultsReader&, const std::vector<LayerRows>&);

// The small files beside the results.h5 of msa-compare. They are computed from it alone, so a
// resumed and an uninterrupted run give the same, except timing.json.

/// metrics.csv, tidy: layer,selector,setting,budget,block_size,metric,axis,index,value.
std::string compare_csv(const io::ResultsReader&, const std::vector<LayerRows>&);

/// timing.json: seconds of each selector's selection and measurement on each layer, from run.json.
/// Has no layers if run.json is missing.
std::string compare_timing(const std::filesystem::path& run_json);

/// Throws std::logic_error if a selector keeps more mass on average than the oracle of its budget,
/// or more than 1. Policies that spend the budget unevenly are checked by row (SelfChecks).
void check_compare_order(const io::ResultsReader&, const std::vector<LayerRows>&);

}  // namespace msa::experiments::compare
