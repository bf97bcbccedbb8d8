// SPDX-License-Identifier: MIT
// Some queries of a layer at work: what every choice of keys is measured against.
#pragma once

#include <span>
#include <vector>

#include "experiments/driver/attend.h"
#include "experiments/measure/layer.h"
#include "experiments/measure/queries.h"

namespace msa::experiments::measure {

/// What the checks of a choice look at (checks.h).
struct CheckedRows {
    const Problem& problem;
    View<const float, 3> mass;   // [Nq, Hkv, B] P_b
    View<const double, 2> norm;  // [Nq, Hkv] |o_dense|^2 over the group's heads
    double mass_bound;           // chunk_mass_bound
};

/// How far a sum of probabilities of queries q [Nq, Hq, dh] may be off, by rounding alone, where
/// dense attention has lse [Nq, Hq] and the longest key is k_norm.
double chunk_mass_bound(const Problem&, View<const float, 3> q, double k_norm,
                        View<const float, 2> lse);

/// A block of queries, by its number in the layer, as rows of a chunk.
struct BlockRows {
    int64_t block = 0;
    QueryRange rows;
    Problem problem;

    template <typename T, int Rank>
    View<T, Rank> of(View<T, Rank> chunk) const {
        return chunk.slice(rows.begin, rows.end - rows.begin);
    }
    template <typename T, int Rank>
    View<const T, Rank> of(const Tensor<T, Rank>& chunk) const {
        return of(chunk.view());
    }
    std::span<const analysis::RowKind> of(std::span<const analysis::RowKind> kinds) const {
        return kinds.subspan(static_cast<size_t>(rows.begin),
                             static_cast<size_t>(rows.end - rows.begin));
    }
};

/// The blocks that the queries `range` of a layer are, whose problem is `chunk`.
std::vector<BlockRows> block_rows(const Problem& chunk, const analysis::QueryBlocks&,
                                  QueryRange range);

/// Some queries with dense attention over them, and P_b.
struct MeasuredChunk {
    /// The queries `range` of `all`, whole blocks, which `of` has in the backend's space, with
    /// dense attention over them and P_b [Nq, Hkv, B], absent: what `of` computes. All must outlive
    /// this. k_norm: the longest key of the layer.
    MeasuredChunk(const ChunkView& of, const LayerQueries& all, QueryRange range, double k_norm,
                  const Attention& dense_of, View<const float, 3> mass_of = {});

    CheckedRows rows() const { return {problem, mass, norm, mass_bound}; }

    const ChunkView& queries;
    const Problem& problem;
    std::span<const analysis::RowKind> kinds;  // [Nq]
    std::vector<BlockRows> blocks;
    const Attention& dense;
    View<const float, 3> mass;
    Tensor<double, 2> norm;
    double mass_bound;
};

}  // namespace msa::experiments::measure
