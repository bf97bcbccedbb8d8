// SPDX-License-Identifier: MIT
// Overlap of selections, and the distances of selected blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/rows.h"
#include "core/selection.h"
#include "core/tensor.h"

namespace msa::analysis {

/// |a n b| / |a u b| of ascending ids; 1 when both are empty.
double overlap(std::span<const int32_t> a, std::span<const int32_t> b);

/// Mean overlap of the blocks that the groups of a layer select for the same query.
class GroupOverlap {
public:
    explicit GroupOverlap(int64_t groups);
    /// A chunk of queries: ids [Nq, Hkv, k], kinds [Nq].
    void add(std::span<const RowKind> kinds, View<const int32_t, 3> ids);
    State state() const { return state_of(means_); }
    void join(const State& state) { join_means(means_, state); }
    /// [Hkv, Hkv], symmetric, 1 on the diagonal; NaN where no row was counted.
    Tensor<double, 2> matrix() const;

private:
    int64_t groups_;
    std::vector<Mean> means_;  // [Hkv * Hkv], above the diagonal
};

/// Mean overlap of the same rows and groups of two selections [Nq, Hkv, any k].
double mean_overlap(View<const int32_t, 3> a, View<const int32_t, 3> b);

/// Counts of selected blocks by distance: the query's own block is 0, the one before it 1.
class Distances {
public:
    explicit Distances(int64_t blocks) : counts_(static_cast<size_t>(blocks), 0) {}
    void add(const Problem&, std::span<const RowKind> kinds, View<const int32_t, 3> ids);
    State state() const { return {{}, counts_}; }
    void join(const State&);
    const std::vector<int64_t>& counts() const { return counts_; }  // [B]

private:
    std::vector<int64_t> counts_;
};

/// The pattern in a heat map of a selection (fig:vis-selection): a column at the first block, a
/// diagonal, and far blocks that groups share or do not. Far blocks of a query are all but the
/// first and the query's newest two.
class SelectionPattern {
public:
    explicit SelectionPattern(int64_t groups);
    /// A chunk of queries: ids [Nq, Hkv, k], kinds [Nq].
    void add(const Problem&, std::span<const RowKind> kinds, View<const int32_t, 3> ids);

    // NaN where no row was counted.
    std::vector<double> first_block_rate() const;  // [Hkv] share of rows that keep block 0
    std::vector<double> local_rate() const;        // [Hkv] that keep the block before their own
    /// [Hkv (Hkv - 1) / 2] for groups 0 and 1, 0 and 2 and so on: mean overlap of the far blocks
    /// that two groups keep for the same query. Rows in which neither keeps one do not count.
    std::vector<double> far_overlap() const;

private:
    std::vector<double> of(size_t first, size_t count) const {
        return values(std::span(means_).subspan(first, count));
    }
    size_t groups_;
    std::vector<Mean> means_;  // the rates of all groups, then of each pair
};

}  // namespace msa::analysis
