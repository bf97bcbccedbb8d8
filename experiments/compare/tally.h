// SPDX-License-Identifier: MIT
// What is added up for one arm while the chunks of a layer go by.
#pragma once

#include <span>
#include <string>

#include "analysis/output_error.h"
#include "analysis/overlap.h"
#include "analysis/recall.h"
#include "analysis/selector_cost.h"
#include "core/io/results.h"
#include "experiments/compare/plan.h"

namespace msa::experiments::compare {

/// One chunk as an arm is measured on it.
struct MeasuredChunk {
    const Problem& problem;
    std::span<const analysis::RowKind> kinds;  // [Nq]
    View<const float, 3> mass;                 // [Nq, Hkv, B]
    View<const int32_t, 3> oracle_ids;         // [Nq, Hkv, k]
    View<const float, 3> dense;                // [Nq, Hq, dh]
};

/// [Nq, Hq, dh] as [Nq, Hkv, G * dh]: the heads of a group lie next to each other.
View<const float, 3> by_group(View<const float, 3> heads, int64_t groups);

/// The attributes of an arm's group that say what it is; `used`: the rule that it was held to.
void write_arm(io::ResultsWriter& to, const std::string& group, const Arm& arm,
               const std::string& rule, int64_t block_size, const SelectionRule& used,
               int64_t rows_counted);
/// Those that say what it costs, per query.
void write_costs(io::ResultsWriter& to, const std::string& group, const analysis::Cost& index,
                 const analysis::Cost& attention, int64_t queries);

class Tally {
public:
    /// `layer`: sizes of the whole layer.
    Tally(Arm arm, const Problem& layer);

    /// A chunk's choice, ids [Nq, Hkv, any], and the attention over it, sparse [Nq, Hq, dh].
    void add(const MeasuredChunk&, View<const int32_t, 3> ids, View<const float, 3> sparse);
    void add_cost(const analysis::Cost& cost);

    /// The groups /metrics, /overlap and /distance of the arm.
    void write(io::ResultsWriter& to, const std::string& layer, const Problem& p,
               const SelectionRule& used) const;

    const Arm& arm() const { return arm_; }

private:
    Arm arm_;
    analysis::Recall recall_;
    analysis::OutputError output_error_;  // over the heads of each group together
    analysis::GroupOverlap overlap_;
    analysis::Distances distances_;
    std::vector<analysis::Mean> blocks_;  // [Hkv] selected per counted query
    analysis::Cost index_, attention_;
    int64_t counted_ = 0, queries_ = 0;
};

}  // namespace msa::experiments::compare
