// SPDX-License-Identifier: MIT
// Blocks of neighbouring queries, which the bootstrap draws (bootstrap.h), and what a choice of
// keys keeps on each of them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "analysis/rows.h"
#include "core/tensor.h"

namespace msa::analysis {

/// Counted queries whose positions in their sequence lie in the same `tokens` are one block.
struct QueryBlocks {
    std::vector<int64_t> of_query;   // [Nq]; -1 where the query is not counted
    std::vector<int64_t> sequences;  // [M] the sequence of each block
    std::vector<int64_t> rows;       // [M] its counted queries

    int64_t count() const { return std::ssize(rows); }
};

/// kinds [Nq] of the problem's queries, which are in order.
QueryBlocks query_blocks(const Problem&, std::span<const RowKind> kinds, int64_t tokens);

/// Means of some columns over the rows of each block. Rows are measured as add_rows (rows.h) asks.
class BlockMeans {
public:
    BlockMeans(int64_t blocks, int64_t columns)
        : columns_(columns), means_(static_cast<size_t>(blocks * columns)) {}

    /// A chunk: the block of each query [Nq], and what measures query i.
    void add(std::span<const int64_t> of_query,
             const std::function<void(int64_t i, RowValues values)>& measure);
    State state() const { return state_of(means_); }
    void join(const State& state) { join_means(means_, state); }
    /// [M * columns], row-major; NaN where a block has no value.
    std::vector<double> values() const { return analysis::values(means_); }

private:
    int64_t columns_;
    std::vector<Mean> means_;
};

/// [M, Hkv] each. Sums go in the order of the rows, so that the cut into chunks does not matter.
class BlockSums {
public:
    BlockSums(int64_t blocks, int64_t groups)
        : mass({blocks, groups}), difference({blocks, groups}), norm({blocks, groups}) {}

    /// A chunk: the block of each query [Nq]; of each query and group [Nq, Hkv] the mass that it
    /// keeps, |o_sparse - o_dense|^2 and |o_dense|^2.
    void add(std::span<const int64_t> of_query, View<const double, 2> mass_kept,
             View<const double, 2> differences, View<const double, 2> norms);
    State state() const;
    void join(const State&);

    Tensor<double, 2> mass;        // sum of the mass kept
    Tensor<double, 2> difference;  // sum of |o_sparse - o_dense|^2
    Tensor<double, 2> norm;        // sum of |o_dense|^2
};

}  // namespace msa::analysis
