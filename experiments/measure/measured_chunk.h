// SPDX-License-Identifier: MIT
// A chunk of queries with the dense attention that every choice of keys is compared with.
#pragma once

#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "experiments/driver/attend.h"
#include "experiments/measure/layer.h"
#include "experiments/measure/queries.h"

namespace msa::experiments::measure {

/// Input of the checks of a choice (checks.h).
struct CheckedRows {
    const Problem& problem;
    View<const float, 3> mass;   // [Nq, Hkv, B] P_b
    View<const double, 2> norm;  // [Nq, Hkv] |o_dense|^2 over the group's heads
    double mass_bound;           // rounding bound of a sum of probabilities
    Element element;             // of the operands
};

/// A block of queries: its number in the layer, and its rows in a chunk.
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

/// The blocks of the queries `range` of a layer; `chunk` is the problem of these.
std::vector<BlockRows> block_rows(const Problem& chunk, const analysis::QueryBlocks&,
                                  QueryRange range);

/// The part of a chunk that does not depend on the block size.
struct DenseChunk {
    /// sink_tokens: the number of first tokens whose logits are kept.
    DenseChunk(const ChunkView&, int64_t sink_tokens);

    Attention attention;
    Tensor<double, 3> first_logits;  // analysis::SinkMass
};

/// Some queries with their dense attention, P_b, and the oracle's choices.
struct MeasuredChunk {
    /// The queries `range_of` of `all`, whole blocks. `of` has them in the backend's space, with
    /// their dense attention and P_b [Nq, Hkv, B]. All arguments must outlive this. k_norm: the
    /// largest norm of the layer's keys.
    MeasuredChunk(const ChunkView& of, const SelectorLayer& layer_of, const LayerQueries& all,
                  QueryRange range_of, double k_norm, const DenseChunk& dense_of, Mirror<3> mass_of,
                  bool oracle_by_logit);

    CheckedRows rows() const { return {problem, mass, norm, mass_bound, queries.element()}; }
    /// [Nq, Hkv, k] The blocks of highest mass, or of the highest logit. Computed on first use for
    /// a rule; not thread-safe.
    const Tensor<int32_t, 3>& oracle(const SelectionRule&) const;

    const ChunkView& queries;
    const SelectorLayer& layer;
    const Problem& problem;
    QueryRange range;
    std::span<const analysis::RowKind> kinds;  // [Nq]
    std::vector<BlockRows> blocks;
    const Attention& dense;
    View<const double, 3> first_logits;  // [Nq, Hq, sink tokens]
    Mirror<3> masses;
    View<const float, 3> mass;  // these on the host
    Tensor<double, 2> norm;
    double mass_bound;

private:
    bool by_logit_;
    mutable std::deque<std::pair<SelectionRule, Tensor<int32_t, 3>>> oracles_;
};

}  // namespace msa::experiments::measure
