// SPDX-License-Identifier: MIT
// What is added up for one config while the chunks of a layer go by.
#pragma once

#include <span>
#include <string>

#include "analysis/hardware.h"
#include "analysis/output_error.h"
#include "analysis/overlap.h"
#include "analysis/query_blocks.h"
#include "analysis/recall.h"
#include "core/io/results.h"
#include "core/select/policy.h"
#include "experiments/compare/plan.h"

namespace msa::experiments::compare {

/// One chunk as a config is measured on it.
struct MeasuredChunk {
    const Problem& problem;
    std::span<const analysis::RowKind> kinds;  // [Nq]
    std::span<const int64_t> blocks;           // [Nq] QueryBlocks::of_query
    View<const float, 3> mass;                 // [Nq, Hkv, B]
    View<const int32_t, 3> oracle_ids;         // [Nq, Hkv, k]
    View<const float, 3> dense;                // [Nq, Hq, dh]
    View<const double, 2> norm;                // [Nq, Hkv] |o_dense|^2 of the group's heads
    View<const float, 2> lse;                  // [Nq, Hq] of dense attention
    double mass_bound;  // how far a sum of probabilities may be off, by rounding alone
};

/// What intervals are made of: /blocks of the config on the layer, [M, Hkv, 2]. rows [M], of all
/// views.
void write_blocks(io::UnitWriter& to, const std::string& at, const analysis::BlockSums&,
                  std::span<const int64_t> rows, int64_t views);

/// What every config has: what it is, what it read, what it costs. A layer may be looked at as
/// several views (--share head); counts are of the layer's queries, costs of all its views.
class Reading {
public:
    Reading(Config config, size_t views, int64_t groups);

    /// The whole phase's scores, of one view.
    void add_index_cost(const Policy&, const Problem& phase, int64_t prompt);
    /// One query: what its attention costs.
    void add_query(const analysis::Cost& attention);
    /// A counted query and group: blocks that its choice touches, and keys of them that it reads.
    void add_counted(int64_t group, int64_t blocks, int64_t tokens);
    void count_row() { ++counted_; }

    /// Attributes and metrics of the config's group, but for what is measured.
    void write(io::UnitWriter& to, const std::string& group, const Policy&,
               int64_t block_size) const;

    const Config& config() const { return config_; }
    int64_t views() const { return views_; }

private:
    Config config_;
    int64_t views_, counted_ = 0, queries_ = 0;
    std::vector<analysis::Mean> blocks_, tokens_;  // [Hkv]
    analysis::Cost index_, attention_;             // index: per query of the phase
};

class Accumulator {
public:
    /// `layer`: sizes of the whole layer; `blocks`: of its queries.
    Accumulator(Config config, const Problem& layer, const analysis::QueryBlocks& blocks,
                size_t views);

    /// A chunk's choice, ids [Nq, Hkv, any], and |o_sparse - o_dense|^2 [Nq, Hkv] over it.
    void add(const MeasuredChunk&, View<const int32_t, 3> ids, View<const double, 2> differences);
    Reading& reading() { return reading_; }
    const Config& config() const { return reading_.config(); }
    const analysis::BlockSums& sums() const { return sums_; }

    /// The groups /metrics, /blocks, /overlap and /distance of the config.
    void write(io::UnitWriter& to, const std::string& layer, const Problem& p) const;

private:
    Reading reading_;
    analysis::Recall recall_;
    analysis::OutputError output_error_;  // over the heads of each group together
    const analysis::QueryBlocks& blocks_;
    analysis::BlockSums sums_;
    analysis::GroupOverlap overlap_;
    analysis::Distances distances_;
};

}  // namespace msa::experiments::compare
