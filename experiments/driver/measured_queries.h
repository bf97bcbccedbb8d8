// SPDX-License-Identifier: MIT
// Queries that a program measures in blocks, which the bootstrap draws, and what results say of
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/io/activations.h"
#include "core/io/results.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments {

/// The sampled queries that see more than k blocks (with --all-rows, all that see a key). A block
/// are those that lie in one key block of their sequence.
struct MeasuredQueries {
    std::vector<int64_t> tokens;     // packed, ascending
    std::vector<int64_t> begins{0};  // [M + 1] the first query of each block, and the end
    std::vector<int64_t> sequences;  // [M]

    int64_t blocks() const { return std::ssize(sequences); }
    int64_t first(int64_t block) const { return begins[static_cast<size_t>(block)]; }
    bool operator==(const MeasuredQueries&) const = default;
};

/// InputError where fewer than two blocks have queries.
MeasuredQueries choose_queries(const QueryOptions&, const SizeOptions&, bool all_rows,
                               uint64_t seed, const io::ActivationsInfo&, const io::LayerInfo&);

/// Queries of a layer that are worked on at a time, so that what is held of them stays small.
int64_t chunk_queries(const Problem&);

/// Writes the datasets `token`, `block_begin` and `block_sequence` of a group.
void write_queries(const MeasuredQueries&, const std::string& group, io::UnitWriter&);

/// The blocks of queries of a group of results, and how often each of kDraws draws takes each.
struct DrawnQueries {
    DrawnQueries(const io::ResultsReader&, const std::string& group, uint64_t seed);

    int64_t blocks() const { return std::ssize(sequences); }
    /// One draw, of every block once: what there is.
    DrawnQueries once() const;
    int64_t sequence_count() const;
    int64_t queries() const;
    std::vector<int64_t> sequences;  // [M]
    std::vector<double> rows;        // [M] queries of each block
    Tensor<int32_t, 2> draws;        // [kDraws, M]

private:
    DrawnQueries() = default;
};

/// Per draw: the mean over the drawn queries, from the means of each block.
std::vector<double> drawn_means(const DrawnQueries&, View<const double, 1> values);
/// Likewise the relative error, mean over the heads whose norm is not 0: sums of squares
/// [M, heads] of the differences and of what they are relative to.
std::vector<double> drawn_errors(const DrawnQueries&, View<const double, 2> difference,
                                 View<const double, 2> norm);

}  // namespace msa::experiments
