// SPDX-License-Identifier: MIT
// What msa-analyze adds up while the queries of a layer go by, and the datasets that come of it.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "analysis/entropy.h"
#include "analysis/output_error.h"
#include "analysis/popularity.h"
#include "analysis/recall.h"
#include "analysis/sink.h"
#include "core/io/results.h"
#include "experiments/analyze/curve.h"
#include "experiments/measure/checks.h"
#include "experiments/measure/sums.h"

namespace msa::experiments::analyze {

/// What decides the size of all sums of a layer.
struct LayerSizes {
    int64_t query_heads = 0, kv_heads = 0, block_size = 0;
    std::vector<int64_t> first_block;  // [S+1], block_starts of core/problem.h
    int64_t sink_tokens = 0;
    bool oracle_without_local = false;

    int64_t group_size() const { return query_heads / kv_heads; }
};

/// What decides those of a selector, and where they are written.
struct SelectorAbout {
    std::string label;
    bool is_oracle = false;
    int64_t top_k = 0;
    std::vector<int64_t> ks;  // of its curve
};

/// Queries that the averages count, and that they leave out.
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

/// Of dense attention, over the queries of a block or of a layer.
struct DenseSums {
    DenseSums(const LayerSizes& sizes, std::vector<int64_t> ks);
    void write(io::UnitWriter& to, const std::string& layer) const;

    RowCounts rows;
    Curve oracle_curve;
    analysis::SinkMass sink;
    analysis::Entropy entropy;
    FirstBlockMass first_block;
};

/// Of one selector.
struct SelectorSums {
    SelectorSums(const LayerSizes& sizes, const SelectorAbout& of);

    Curve curve;
    analysis::Recall recall;
    analysis::OutputError output_error;
    analysis::SinkMass sink;
    analysis::Entropy entropy;
};

/// Their states, under a name.
measure::States states_of(const DenseSums&);
measure::States states_of(const SelectorSums&, const std::string& label);

/// Of a layer, or a part of it.
struct LayerSums {
    LayerSums(LayerSizes of, std::vector<int64_t> ks)
        : sizes(std::move(of)), oracle_ks(std::move(ks)) {}
    void add_selector(SelectorAbout about);
    /// The sums, and the datasets of the layer that are not rows of queries.
    void write(io::UnitWriter& to, const std::string& layer) const;

    /// The sums, and the rest as datasets of the group /state.
    void store(io::UnitWriter& to, const std::string& layer) const;
    /// What a part stored, without its sums.
    static LayerSums like(const io::DatasetReader& part);
    /// Adds the sums of the part that follows. InputError unless it has the same sizes.
    void append(const io::DatasetReader& part, const std::string& layer);

    LayerSizes sizes;
    std::vector<int64_t> oracle_ks;
    measure::Sums sums;
    std::vector<SelectorAbout> selectors;
    std::vector<analysis::Popularity> popularity;  // of each
    measure::SelfChecks checks;
};

}  // namespace msa::experiments::analyze
