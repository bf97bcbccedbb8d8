// SPDX-License-Identifier: MIT
// The distribution of queries over key blocks, which a KV-outer kernel has to balance
// (sec:kernel:sparse_attn, pre-scheduled tile chunking and query concatenation).
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/rows.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa::analysis {

class Popularity {
public:
    /// Sizes from the problem of the whole layer: its sequences, groups and block size.
    explicit Popularity(const Problem& layer);
    /// The same from the first block of each sequence (block_starts of core/problem.h).
    Popularity(int64_t groups, std::vector<int64_t> first_block);

    /// A chunk of the layer's queries with ids [Nq, Hkv, k].
    void add(const Problem&, View<const int32_t, 3> ids);

    State state() const;
    void join(const State&);

    /// int64 [Hkv, blocks of all sequences]: queries of the group that selected the block.
    View<const int64_t, 2> queries_per_block() const { return counts_.view(); }

private:
    std::vector<int64_t> first_block_;  // [S+1]
    Tensor<int64_t, 2> counts_;
};

/// [n+1] points from 0 to 1: share of all queries held by the least popular blocks, in steps of one
/// block. 0 everywhere when nothing is selected.
std::vector<double> lorenz_curve(View<const int64_t, 1> counts);
/// 1 - 2 * area under the Lorenz curve: 0 when all blocks are equally popular.
double gini(View<const int64_t, 1> counts);

// The paper's tiling (sec:kernel:sparse_attn). For that of our kernels see selection_cost.h.

/// Number of pieces of at most 2 k Bk queries into which the paper's scheduler cuts the blocks'
/// lists.
int64_t chunks(View<const int64_t, 1> counts, int64_t top_k, int64_t block_size);

/// ceil(128 / G): query positions whose G heads fill the paper's 128-row MMA tile.
int64_t queries_per_tile(int64_t group_size);
/// MMA tiles when each block's queries are packed.
int64_t mma_tiles(View<const int64_t, 1> counts, int64_t group_size);
/// Share of these tiles' rows that is used. NaN if nothing is selected.
double mma_fill(View<const int64_t, 1> counts, int64_t group_size);

}  // namespace msa::analysis
