// SPDX-License-Identifier: MIT
// Blocks of neighbouring queries: what the bootstrap draws (bootstrap.h), and what sums over
// queries are kept of, so that parts of a layer are some of its blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/rows.h"
#include "core/tensor.h"

namespace msa::analysis {

/// Positions of a sequence whose queries are one block.
inline constexpr int64_t kBlockPositions = 128;

/// The queries of a problem in blocks, in order.
struct QueryBlocks {
    std::vector<int64_t> begins{0};  // [M + 1] first query of each block, and the number of queries
    std::vector<int64_t> sequences;  // [M] the sequence of each
    std::vector<int64_t> rows;       // [M] its counted queries, which may be none

    int64_t count() const { return std::ssize(rows); }
    QueryRange range(int64_t block) const {
        const auto b = static_cast<size_t>(block);
        return {begins[b], begins[b + 1]};
    }
    /// The block that the query, or the end, lies at.
    int64_t at(int64_t query) const;
};

/// kinds [Nq] of the problem's queries.
QueryBlocks query_blocks(const Problem&, std::span<const RowKind> kinds);

/// What an accumulator (State of rows.h) has of each block. Sums are additive: those of several
/// parts of a layer are those of their blocks, one part behind the other.
class BlockSums {
public:
    BlockSums() = default;
    explicit BlockSums(int64_t blocks) : of_(static_cast<size_t>(blocks)) {}
    /// sums [M, n] and counts [M, m] as tensors give them back.
    BlockSums(View<const double, 2> sums, View<const int64_t, 2> counts);

    /// On top of what the block has. States of all blocks have the same sizes.
    void add(int64_t block, const State& state);
    /// The blocks of another one behind these.
    void append(const BlockSums& next);
    /// Over all blocks, in their order.
    State total() const;

    int64_t blocks() const { return std::ssize(of_); }
    Tensor<double, 2> sums() const;     // [M, n]
    Tensor<int64_t, 2> counts() const;  // [M, m]

private:
    std::vector<State> of_;
};

}  // namespace msa::analysis
