// SPDX-License-Identifier: MIT
// The results of msa-compare, row by row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/io/results.h"

namespace msa::experiments::compare {

/// A number of the summary: an attribute of the config's metrics.
struct Measure {
    const char* name;
    const char* definition;
};

inline constexpr Measure kMeasures[] = {
    {"mass_kept", "sum of P_b over the chosen blocks: share of the dense attention probability"},
    {"oracle_mass", "the same over I*, the best choice of as many blocks for each group"},
    {"score_recall", "sum of P_b over chosen blocks in I* / sum of P_b over I*"},
    {"block_recall", "share of I* that was chosen"},
    {"output_error",
     "|o_sparse - o_dense| / |o_dense| over the counted queries and a group's heads, mean over "
     "groups"},
    {"blocks_kept", "chosen blocks per counted query and group"},
    {"tokens_read",
     "keys that a counted query reads per group: its own block as far as it sees it"},
    {"index_flops",
     "FLOPs of the selector's scores per query of the phase, all heads (a multiply-add is 2)"},
    {"index_bytes",
     "bytes that they read per query of the phase, each query on its own, 2-byte elements; what "
     "is read once for several queries is spread over them"},
    {"attention_flops", "FLOPs of attention over the chosen keys per query"},
    {"attention_bytes", "bytes of chosen keys and values per query, likewise"},
};

inline constexpr const char* kRowSizes[] = {"budget",       "block_size",   "top_k",
                                            "forced_first", "forced_local", "matched_budget",
                                            "rows_counted", "dead_groups"};

/// One config on one layer.
struct Row {
    std::string layer, key, selector, setting;
    int64_t budget = 0;

    std::string group() const { return "/metrics/" + key + "/" + layer; }
    /// What an ablation varies: the setting without its budget.
    std::string variant() const {
        const size_t comma = setting.find(',');
        return comma == std::string::npos ? "" : setting.substr(comma + 1);
    }
    double value(const io::ResultsReader& results, const std::string& name) const {
        return results.number(group(), name);
    }
    int64_t size(const io::ResultsReader& results, const std::string& name) const {
        return static_cast<int64_t>(results.number(group(), name));
    }
};

/// What a reader must know of the policies of a layer's rows, and which layer stands before it.
std::vector<std::string> read_notes(const io::ResultsReader&, const std::vector<Row>& of_layer);

/// By layer, then by selector in the order of their documentation, then by budget and setting.
std::vector<Row> read_rows(const io::ResultsReader&);

}  // namespace msa::experiments::compare
