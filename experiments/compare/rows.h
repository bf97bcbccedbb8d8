// SPDX-License-Identifier: MIT
// The results of msa-compare, row by row.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "analysis/metrics.h"
#include "core/io/results.h"

namespace msa::experiments::compare {

/// A number of the summary: an attribute of the config's metrics, and a metric of
/// analysis/metrics.h.
struct Measure {
    const char* name;
    const char* definition() const { return analysis::metric(name).definition; }
};

inline constexpr Measure kMeasures[] = {
    {"mass_kept"},          {"oracle_mass"},     {"score_recall"},    {"block_recall"},
    {"group_output_error"}, {"blocks_kept"},     {"tokens_read"},     {"index_flops"},
    {"index_bytes"},        {"attention_flops"}, {"attention_bytes"}, {"sink_mass_dense"},
    {"sink_mass_sparse"},
};

inline constexpr const char* kRowSizes[] = {"budget",       "block_size",   "top_k",
                                            "forced_first", "forced_local", "matched_budget",
                                            "rows_counted", "dead_groups",  "tokens_allowed"};

/// One config on one layer.
struct Row {
    std::string layer, key, selector, setting;
    int64_t budget = 0;

    std::string group() const { return "/metrics/" + key + "/" + layer; }
    /// The ablation's part of the setting, without the budget.
    std::string variant() const {
        const size_t comma = setting.find(',');
        return comma == std::string::npos ? "" : setting.substr(comma + 1);
    }
    /// Whether it reads more tokens than its budget allows.
    bool over_budget(const io::ResultsReader& results) const {
        return value(results, "tokens_read") > static_cast<double>(size(results, "tokens_allowed"));
    }
    /// The setting with which it is compared: a window of equal budget is compared with the
    /// selectors of that budget.
    std::string compared_setting() const {
        return variant() == "equal=budget" ? setting.substr(0, setting.find(',')) : setting;
    }
    /// Whether it can be the best of its setting. Excluded: oracles, rows over budget, rows with
    /// their own budget, rows without counted queries.
    bool is_candidate(const io::ResultsReader& results) const {
        return results.text(group(), "family") != "oracle" && !over_budget(results) &&
               variant() != "equal=FLOPs" && !std::isnan(value(results, "mass_kept"));
    }
    double value(const io::ResultsReader& results, const std::string& name) const {
        return results.number(group(), name);
    }
    int64_t size(const io::ResultsReader& results, const std::string& name) const {
        return static_cast<int64_t>(results.number(group(), name));
    }
};

/// Notes on the policies of a layer's rows, and which layer is its previous one.
std::vector<std::string> read_notes(const io::ResultsReader&, const std::vector<Row>& of_layer);

/// The rows whose choice of blocks drops a sink, from dropped_sinks (driver/sink_note.h).
nlohmann::ordered_json rows_without_sinks(const io::ResultsReader&);

/// The layers of rows in their order, and those of one layer.
std::vector<std::string> layers_of(const std::vector<Row>&);
std::vector<Row> of_layer(const std::vector<Row>&, const std::string& layer);

/// By layer, then by selector in the order of their documentation, then by budget and setting.
std::vector<Row> read_rows(const io::ResultsReader&);

}  // namespace msa::experiments::compare
