// SPDX-License-Identifier: MIT
// Accumulators of msa-analyze beside the common sums, and the datasets made of them.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "analysis/recall.h"
#include "core/io/results.h"
#include "experiments/driver/attend.h"
#include "experiments/measure/measure.h"
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

/// Mean mass kept and recalls against the number of selected blocks.
class Curve {
public:
    /// The numbers of blocks, ascending.
    explicit Curve(std::vector<int64_t> ks) : ks_(std::move(ks)), means_(kCount * ks_.size()) {}

    /// Powers of two, all blocks, and the rule's own k.
    static std::vector<int64_t> points(const Problem&, const SelectionRule&);
    /// For each number the selected blocks, and the oracle's of the same number, [Nq, Hkv, k] on
    /// the host; the oracle's are the chunk's.
    struct Picked {
        std::vector<Tensor<int32_t, 3>> own;
        std::vector<const Tensor<int32_t, 3>*> best;
        bool without_local;  // the query's own block is no part of I*
    };
    static Picked pick_all(const measure::MeasuredChunk&, const measure::Choice&,
                           const std::vector<int64_t>& ks, In<3> scores, bool without_local);

    /// Adds the rows of a block of queries.
    void add(const measure::BlockRows&, std::span<const analysis::RowKind> kinds, const Picked&,
             View<const float, 3> mass);
    analysis::State state() const { return analysis::state_of(means_); }
    void join(const analysis::State& state) { analysis::join_means(means_, state); }
    void write(io::UnitWriter& to, const std::string& group) const;

private:
    enum Metric : size_t { kMassKept, kBlockRecall, kScoreRecall, kCount };
    std::vector<int64_t> ks_;
    std::vector<analysis::Mean> means_;  // [ks, kCount]
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
