// SPDX-License-Identifier: MIT
// The queries of a layer that a program measures, in blocks (analysis/query_blocks.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "analysis/query_blocks.h"
#include "core/io/activations.h"
#include "core/io/results.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments::measure {

struct LayerQueries {
    std::vector<int64_t> tokens;           // packed, ascending
    std::vector<analysis::RowKind> kinds;  // [n] which of them averages count
    analysis::QueryBlocks blocks;

    LayerQueries() = default;
    /// `queries`: the problem of the packed tokens `of`.
    LayerQueries(const Problem& queries, std::vector<int64_t> of,
                 std::vector<analysis::RowKind> kinds_of);

    std::span<const int64_t> tokens_of(QueryRange range) const {
        return std::span(tokens).subspan(static_cast<size_t>(range.begin),
                                         static_cast<size_t>(range.end - range.begin));
    }
    std::span<const analysis::RowKind> kinds_of(QueryRange range) const {
        return std::span(kinds).subspan(static_cast<size_t>(range.begin),
                                        static_cast<size_t>(range.end - range.begin));
    }
    /// The packed tokens of the queries that averages count.
    std::vector<int64_t> counted() const;
    bool operator==(const LayerQueries& other) const { return tokens == other.tokens; }
};

/// The sampled queries that see more than k blocks (with --all-rows, all that see a key).
/// InputError if they are fewer than two blocks.
LayerQueries counted_queries(const QueryOptions&, const SizeOptions&, bool all_rows, uint64_t seed,
                             const io::ActivationsInfo&, const io::LayerInfo&);

/// Cuts the queries `of`, which are whole blocks, into chunks of whole blocks: at most `most`
/// queries, or one block.
std::vector<QueryRange> chunks(const analysis::QueryBlocks&, QueryRange of, int64_t most);

/// How many queries to process at a time within a fixed memory budget; each takes `of_blocks`
/// floats [Hkv, B] and `of_heads` floats [Hq, dh].
int64_t chunk_queries(const Backend&, const Problem&, int64_t of_blocks, int64_t of_heads);

/// Writes two datasets of the group with one value per block: `rows`, its counted queries, and
/// `sequence`.
void write_query_blocks(io::UnitWriter&, const std::string& group, const analysis::QueryBlocks&);

/// Writes the dataset `token` of the group.
void write_tokens(io::UnitWriter&, const std::string& group, std::span<const int64_t> tokens);

}  // namespace msa::experiments::measure
