// SPDX-License-Identifier: MIT
#include "experiments/measure/queries.h"

#include <algorithm>
#include <utility>

#include "experiments/driver/attend.h"

namespace msa::experiments::measure {

using analysis::RowKind;

namespace {

constexpr int64_t kLeastBlocks = 2, kMostChunk = 4096;
constexpr int64_t kDeviceChunkBytes = int64_t{1} << 30;

}  // namespace

LayerQueries::LayerQueries(const Problem& queries, std::vector<int64_t> of,
                           std::vector<RowKind> kinds_of)
    : tokens(std::move(of)),
      kinds(std::move(kinds_of)),
      blocks(analysis::query_blocks(queries, kinds)) {}

std::vector<int64_t> LayerQueries::counted() const {
    std::vector<int64_t> those;
    for (size_t i = 0; i < kinds.size(); ++i)
        if (kinds[i] == RowKind::counted) those.push_back(tokens[i]);
    return those;
}

LayerQueries counted_queries(const QueryOptions& asked, const SizeOptions& sizes, bool all_rows,
                             uint64_t seed, const io::ActivationsInfo& info,
                             const io::LayerInfo& layer) {
    const Problem whole = io::layer_problem(info, layer, sizes.block_size);
    const std::vector<int64_t> sampled = sampled_queries(asked, info.cu_seqlens, layer.layer, seed);
    const Problem of_all = whole.with_query_rows(sampled);
    std::vector<int64_t> counted =
        LayerQueries(of_all, sampled, analysis::row_kinds(of_all, sizes.rule.top_k, all_rows))
            .counted();
    const Problem p = whole.with_query_rows(counted);
    LayerQueries queries(p, std::move(counted),
                         std::vector<RowKind>(static_cast<size_t>(p.queries()), RowKind::counted));
    require(queries.blocks.count() >= kLeastBlocks, "layer ", layer.layer, ": ",
            queries.tokens.size(), " of the chosen queries see more than ", sizes.rule.top_k,
            " blocks of ", sizes.block_size, " tokens, in ", queries.blocks.count(),
            " stretches of ", analysis::kBlockPositions, " positions; at least ", kLeastBlocks,
            " are needed: choose a smaller --top-k or --block-size, more queries, or --all-rows");
    return queries;
}

std::vector<QueryRange> chunks(const analysis::QueryBlocks& blocks, QueryRange of, int64_t most) {
    std::vector<QueryRange> all;
    for (int64_t block = blocks.at(of.begin); block < blocks.at(of.end); ++block) {
        const QueryRange range = blocks.range(block);
        if (!all.empty() && range.end - all.back().begin <= most)
            all.back().end = range.end;
        else
            all.push_back(range);
    }
    return all;
}

int64_t chunk_queries(const Backend& backend, const Problem& p, int64_t of_blocks,
                      int64_t of_heads) {
    const int64_t floats =
        of_blocks * p.kv_heads * p.blocks() + of_heads * p.query_heads * p.head_dim;
    const int64_t bytes = backend.space() == Space::host ? kChunkBytes : kDeviceChunkBytes;
    return std::clamp<int64_t>(bytes / (int64_t{sizeof(float)} * floats), 1, kMostChunk);
}

void write_query_blocks(io::UnitWriter& to, const std::string& group,
                        const analysis::QueryBlocks& blocks) {
    const Shape<1> shape{blocks.count()};
    to.write<int64_t, 1>(group + "/rows", {blocks.rows.data(), shape},
                         {"block", "queries",
                          concat("counted queries of each block: those that lie in the same ",
                                 analysis::kBlockPositions, " positions of their sequence")});
    to.write<int64_t, 1>(group + "/sequence", {blocks.sequences.data(), shape},
                         {"block", "", "sequence of each block"});
}

void write_tokens(io::UnitWriter& to, const std::string& group, std::span<const int64_t> tokens) {
    to.write<int64_t, 1>(group + "/token", {tokens.data(), {std::ssize(tokens)}},
                         {"query", "token", "packed token index of each measured query"});
}

}  // namespace msa::experiments::measure
