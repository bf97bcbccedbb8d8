// SPDX-License-Identifier: MIT
// Intervals of averages over queries: what a file of results stores of blocks of neighbouring
// queries, and the bootstrap over them (analysis/bootstrap.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "analysis/bootstrap.h"
#include "analysis/query_blocks.h"
#include "core/io/results.h"

namespace msa::experiments {

inline constexpr int64_t kBlockTokens = 128;  // positions of a block of queries

/// "95 % interval of the bootstrap: ..."
inline constexpr const char* kIntervalsWords =
    "95 % interval of the bootstrap: sequences are drawn, then blocks of neighbouring queries of "
    "each";

/// Datasets rows and sequence of the group.
void write_query_blocks(io::UnitWriter&, const std::string& group, const analysis::QueryBlocks&);

/// What they say: of each block its sequence, and how many of its queries are counted.
struct StoredBlocks {
    std::vector<int64_t> sequences, rows;  // [M]

    int64_t count() const { return std::ssize(rows); }
    /// Of how many sequences.
    int64_t sequence_count() const;
};
/// No blocks where there is no such group, as in older files.
StoredBlocks read_query_blocks(const io::ResultsReader&, const std::string& group);

/// means [M, Hkv, C] over the queries of each block, in the order of BlockMeans: columns, then
/// groups. Nothing where there are no blocks.
void write_block_means(io::UnitWriter&, const std::string& dataset, const analysis::BlockMeans&,
                       int64_t blocks, int64_t groups, const std::vector<std::string>& columns);

/// The averages of each column, over queries and then over groups, in one draw. Blocks count by
/// their queries.
std::vector<double> average_of_draw(const StoredBlocks&, View<const double, 3> means,
                                    View<const int32_t, 1> times);

/// The averages `values` [C] with their intervals. NaN where there are less than two blocks.
/// With `less`, `values` are what the averages of `dataset` are more than those of `less`: both are
/// taken of the same draws, so that the interval is of the difference.
std::vector<analysis::Estimate> with_intervals(const io::ResultsReader&, const StoredBlocks&,
                                               const std::string& dataset,
                                               const std::vector<double>& values,
                                               const std::string& less = "");

/// {"low", "high"}; null where NaN.
nlohmann::ordered_json interval_json(const analysis::Estimate&);

/// "Interval: 95 % interval ...; 14 blocks of 1 sequence, seed 0."
std::string drawn_text(const StoredBlocks&, uint64_t seed);

}  // namespace msa::experiments
