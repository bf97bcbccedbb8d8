// SPDX-License-Identifier: MIT
// How much of dense attention a selection keeps (sec:experiment-training-dynamics). With P_b the
// Main Branch probability of block b, mean over the group's heads (Backend::block_mass), I* the
// oracle's blocks and I^ the selector's, per query and group:
//   block recall  |I* n I^| / |I*|
//   score recall  sum of P_b over I* n I^ / sum of P_b over I*
//   mass kept     sum of P_b over I^            oracle mass  sum of P_b over I*
// Averages: rows, then groups, then layers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "analysis/rows.h"
#include "core/selection.h"
#include "core/tensor.h"

namespace msa::analysis {

struct RecallOptions {
    /// Leaves the query's own block out of I*, since it is forced and so always recalled.
    bool exclude_local = false;
};

class Recall {
public:
    Recall(int64_t groups, RecallOptions options);

    /// A chunk of queries, in order. ids, oracle_ids [Nq, Hkv, k]; mass [Nq, Hkv, B]; kinds [Nq]. A
    /// row whose I* is empty or has no mass counts with recall 1: nothing was lost. A row whose
    /// mass is NaN has recalls of NaN, since I* is undefined.
    void add(const Problem&, std::span<const RowKind> kinds, View<const int32_t, 3> ids,
             View<const int32_t, 3> oracle_ids, View<const float, 3> mass);

    /// The columns of measure, each of all groups.
    static constexpr const char* kColumns[] = {"block_recall", "score_recall", "mass_kept",
                                               "oracle_mass"};
    /// Index in state() of the first of a column's `groups` numbers.
    static int64_t first_of(std::string_view column, int64_t groups) {
        return groups *
               (std::find(std::begin(kColumns), std::end(kColumns), column) - std::begin(kColumns));
    }
    /// A function that gives the values that add() counts for query i, [kColumns * Hkv], for other
    /// means of them. The arguments must outlive the function.
    std::function<void(int64_t i, RowValues values)> measure(const Problem&,
                                                             std::span<const RowKind> kinds,
                                                             View<const int32_t, 3> ids,
                                                             View<const int32_t, 3> oracle_ids,
                                                             View<const float, 3> mass) const;

    State state() const { return state_of(means_); }
    void join(const State& state) { join_means(means_, state); }

    // [Hkv]; NaN where no row was counted.
    std::vector<double> block_recall() const { return of(kBlockRecall); }
    std::vector<double> score_recall() const { return of(kScoreRecall); }
    std::vector<double> mass_kept() const { return of(kMassKept); }
    std::vector<double> oracle_mass() const { return of(kOracleMass); }

private:
    enum Metric : size_t { kBlockRecall, kScoreRecall, kMassKept, kOracleMass, kCount };
    static_assert(std::size(kColumns) == kCount);
    std::vector<double> of(Metric which) const {
        return values(std::span(means_).subspan(which * groups_, groups_));
    }

    size_t groups_;
    RecallOptions options_;
    std::vector<Mean> means_;  // [kCount * Hkv]
};

/// Sum of mass over the blocks `ids` of one (query, group).
double mass_of(View<const float, 1> mass, std::span<const int32_t> ids);

/// The recalls of one (query, group), as Recall::add counts them.
struct RowRecall {
    double block_recall, score_recall;
};
/// `without`: a block that is left out of I*, or none where it is negative.
RowRecall recall_of(View<const float, 1> mass, std::span<const int32_t> ids,
                    std::span<const int32_t> oracle_ids, int64_t without);

}  // namespace msa::analysis
