// SPDX-License-Identifier: MIT
// Blocks of neighbouring queries. The bootstrap draws them (bootstrap.h), and sums are kept per
// block, so a part of a layer is a subset of its blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/rows.h"
#include "core/tensor.h"

namespace msa::analysis {

/// Positions of a sequence in one block.
inline constexpr int64_t kBlockPositions = 128;

/// The queries of a problem, cut into blocks in order.
struct QueryBlocks {
    std::vector<int64_t> begins{0};  // [M + 1] first query of each block, and the number of queries
    std::vector<int64_t> sequences;  // [M] the sequence of each
    std::vector<int64_t> rows;       // [M] its counted queries, may be 0

    int64_t count() const { return std::ssize(rows); }
    QueryRange range(int64_t block) const {
        const auto b = static_cast<size_t>(block);
        return {begins[b], begins[b + 1]};
    }
    /// The block that begins at this query; M for the end.
    int64_t at(int64_t query) const;
};

/// kinds [Nq] of the problem's queries.
QueryBlocks query_blocks(const Problem&, std::span<const RowKind> kinds);

/// An accumulator's State (rows.h) for each block. The blocks of several parts of a layer are
/// concatenated.
class BlockSums {
public:
    BlockSums() = default;
    explicit BlockSums(int64_t blocks) : of_(static_cast<size_t>(blocks)) {}
    /// Takes sums [M, n] and counts [M, m] as the getters return them.
    BlockSums(View<const double, 2> sums, View<const int64_t, 2> counts);

    /// Adds to the block's state. States of all blocks have the same sizes.
    void add(int64_t block, const State& state);
    /// Appends the blocks of another one.
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
