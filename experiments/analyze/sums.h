// SPDX-License-Identifier: MIT
// Accumulators of msa-analyze beside the common sums, and the datasets made of them.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/io/results.h"
#include "experiments/analyze/curve.h"
#include "experiments/measure/tally.h"

namespace msa::experiments::analyze {

/// Numbers of queries that averages count, and of those left out as trivial.
struct RowCounts {
    int64_t counted = 0, trivial = 0;

    void add(std::span<const analysis::RowKind> kinds);
    analysis::State state() const { return {{}, {counted, trivial}}; }
    void join(const analysis::State& state);
};

/// [Hkv] Mean mass of the first block, over queries that see a key.
struct FirstBlockMass {
    std::vector<analysis::Mean> means;

    void add(std::span<const analysis::RowKind> kinds, View<const float, 3> mass);
    analysis::State state() const { return analysis::state_of(means); }
    void join(const analysis::State& state) { analysis::join_means(means, state); }
};

/// Metadata of a layer for writing its datasets. A selector's sums are under its label.
struct LayerAbout {
    struct OfSelector {
        std::string label;
        bool is_oracle = false;
        int64_t top_k = 0;
        std::vector<int64_t> ks = {};  // of its curve
    };
    int64_t query_heads = 0, kv_heads = 0, block_size = 0, sink_tokens = 1;
    std::vector<int64_t> first_block;  // [S+1], block_starts of core/problem.h
    std::vector<int64_t> oracle_ks;
    std::vector<OfSelector> selectors = {};
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayerAbout::OfSelector, label, is_oracle, top_k, ks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayerAbout, query_heads, kv_heads, block_size, sink_tokens,
                                   first_block, oracle_ks, selectors)

/// Writes the datasets of a layer that do not have one row per query. Tally::about is a LayerAbout.
void write_metrics(const measure::Tally&, const std::string& layer, io::UnitWriter& to);

}  // namespace msa::experiments::analyze
