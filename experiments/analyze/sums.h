// SPDX-License-Identifier: MIT
// Accumulators of msa-analyze beside the common sums, and the datasets made of them.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "analysis/recall.h"
#include "core/io/results.h"
#include "experiments/driver/attend.h"
#include "experiments/measure/measured_chunk.h"
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

// Mass kept with other numbers of selected blocks than k.

/// Mean mass kept against the number of selected blocks.
class Curve {
public:
    /// The numbers of blocks, ascending.
    explicit Curve(std::vector<int64_t> ks) : ks_(std::move(ks)), means_(ks_.size()) {}

    /// Powers of two, all blocks, and the rule's own k.
    static std::vector<int64_t> points(const Problem& p, const SelectionRule& rule) {
        std::vector<int64_t> ks;
        for (int64_t k = 1; k < p.blocks(); k *= 2) ks.push_back(k);
        ks.push_back(std::max<int64_t>(1, p.blocks()));
        ks.push_back(rule.top_k);
        std::erase_if(ks, [&](int64_t k) { return k < rule.forced_local + rule.forced_first; });
        std::sort(ks.begin(), ks.end());
        ks.erase(std::unique(ks.begin(), ks.end()), ks.end());
        return ks;
    }

    /// The selected blocks for each number, [Nq, Hkv, k] on the host.
    static std::vector<Tensor<int32_t, 3>> pick_all(Backend& backend, const Problem& p,
                                                    SelectionRule rule,
                                                    const std::vector<int64_t>& ks, In<3> scores) {
        std::vector<Tensor<int32_t, 3>> all;
        for (int64_t k : ks) {
            rule.top_k = k;
            all.push_back(pick(backend, p, rule, scores));
        }
        return all;
    }

    /// Adds the rows of a block of queries.
    void add(const measure::BlockRows& of, std::span<const analysis::RowKind> kinds,
             const std::vector<Tensor<int32_t, 3>>& picked, View<const float, 3> mass) {
        const Problem& p = of.problem;
        for (size_t n = 0; n < ks_.size(); ++n) {
            const View<const int32_t, 3> ids = of.of(picked[n]);
            analysis::add_rows({&means_[n], 1}, p.queries() * p.kv_heads,
                               [&](int64_t row, analysis::RowValues values) {
                                   const int64_t i = row / p.kv_heads, r = row % p.kv_heads;
                                   if (kinds[static_cast<size_t>(i)] == analysis::RowKind::counted)
                                       values[0] =
                                           analysis::mass_of(mass[i][r], selected(ids, i, r));
                               });
        }
    }

    analysis::State state() const { return analysis::state_of(means_); }
    void join(const analysis::State& state) { analysis::join_means(means_, state); }

    void write(io::UnitWriter& to, const std::string& group) const {
        const auto n = static_cast<int64_t>(ks_.size());
        const std::vector<double> kept = analysis::values(means_);
        to.write<int64_t, 1>(group + "/k", {ks_.data(), {n}},
                             {"point", "blocks", "selected blocks per query and group"});
        to.write<double, 1>(
            group + "/mass_kept", {kept.data(), {n}},
            {"point", "probability", "mass kept, mean over counted rows and groups"});
    }

private:
    std::vector<int64_t> ks_;
    std::vector<analysis::Mean> means_;
};

}  // namespace msa::experiments::analyze
