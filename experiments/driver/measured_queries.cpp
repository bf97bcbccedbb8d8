// SPDX-License-Identifier: MIT
#include "experiments/driver/measured_queries.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "analysis/query_blocks.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/estimate.h"

namespace msa::experiments {
namespace {

using analysis::RowKind;

constexpr int64_t kLeastBlocks = 2, kMostChunk = 4096;

}  // namespace

MeasuredQueries choose_queries(const QueryOptions& asked, const SizeOptions& sizes, bool all_rows,
                               uint64_t seed, const io::ActivationsInfo& info,
                               const io::LayerInfo& layer) {
    const std::vector<int64_t> sampled = sampled_queries(asked, info.cu_seqlens, layer.layer, seed);
    const Problem p = io::layer_problem(info, layer, sizes.block_size).with_query_rows(sampled);
    const std::vector<RowKind> kinds = analysis::row_kinds(p, sizes.rule.top_k, all_rows);
    const analysis::QueryBlocks blocks = analysis::query_blocks(p, kinds, sizes.block_size);
    MeasuredQueries queries;
    queries.sequences = blocks.sequences;
    for (int64_t rows : blocks.rows) queries.begins.push_back(queries.begins.back() + rows);
    for (size_t i = 0; i < sampled.size(); ++i)
        if (blocks.of_query[i] >= 0) queries.tokens.push_back(sampled[i]);
    require(queries.blocks() >= kLeastBlocks, "layer ", layer.layer, ": ", queries.tokens.size(),
            " of the chosen queries see more than ", sizes.rule.top_k, " blocks of ",
            sizes.block_size, " tokens, in ", queries.blocks(), " blocks; at least ", kLeastBlocks,
            " are needed: choose a smaller --top-k or --block-size, more queries, or --all-rows");
    return queries;
}

int64_t chunk_queries(const Problem& p) {
    // Four scores of a block for every group; a query and two outputs.
    const int64_t row_bytes = 16 * p.kv_heads * p.blocks() + 12 * p.query_heads * p.head_dim;
    return std::clamp<int64_t>(kChunkBytes / row_bytes, 1, kMostChunk);
}

void write_queries(const MeasuredQueries& queries, const std::string& group, io::UnitWriter& to) {
    const auto write = [&](const char* name, const std::vector<int64_t>& values, const char* axis,
                           const char* what) {
        to.write<int64_t, 1>(group + name, {values.data(), {std::ssize(values)}}, {axis, "", what});
    };
    write("/token", queries.tokens, "query", "packed token index of each measured query");
    write("/block_begin", queries.begins, "block",
          "first query of each block of queries, and the number of queries");
    write("/block_sequence", queries.sequences, "block", "sequence of each block of queries");
}

DrawnQueries::DrawnQueries(const io::ResultsReader& results, const std::string& group,
                           uint64_t seed) {
    const auto begins = results.read<int64_t, 1>(group + "/block_begin");
    const auto of = results.read<int64_t, 1>(group + "/block_sequence");
    sequences.assign(of.data(), of.data() + of.size());
    for (int64_t b = 0; b < of.size(); ++b)
        rows.push_back(static_cast<double>(begins(b + 1) - begins(b)));
    draws = analysis::bootstrap_draws(sequences, kDraws, seed);
}

DrawnQueries DrawnQueries::once() const {
    DrawnQueries once;
    once.sequences = sequences;
    once.rows = rows;
    once.draws = Tensor<int32_t, 2>({1, blocks()});
    std::fill_n(once.draws.data(), once.draws.size(), 1);
    return once;
}

int64_t DrawnQueries::sequence_count() const {
    return std::ssize(std::set<int64_t>(sequences.begin(), sequences.end()));
}

int64_t DrawnQueries::queries() const {
    return static_cast<int64_t>(std::accumulate(rows.begin(), rows.end(), 0.0));
}

std::vector<double> drawn_means(const DrawnQueries& of, View<const double, 1> values) {
    std::vector<double> means;
    for (int64_t n = 0; n < of.draws.extent(0); ++n) {
        const View<const int32_t, 1> times = std::as_const(of.draws).view()[n];
        double sum = 0, count = 0;
        for (int64_t b = 0; b < values.size(); ++b) {
            const double weight = times(b) * of.rows[static_cast<size_t>(b)];
            if (weight == 0) continue;
            sum += weight * values(b);
            count += weight;
        }
        means.push_back(sum / count);
    }
    return means;
}

std::vector<double> drawn_errors(const DrawnQueries& of, View<const double, 2> difference,
                                 View<const double, 2> norm) {
    const int64_t heads = norm.extent(1);
    std::vector<double> errors, off(static_cast<size_t>(heads)), all(off);
    for (int64_t n = 0; n < of.draws.extent(0); ++n) {
        std::fill(off.begin(), off.end(), 0.0);
        std::fill(all.begin(), all.end(), 0.0);
        for (int64_t b = 0; b < norm.extent(0); ++b) {
            const double times = of.draws(n, b);
            if (times == 0) continue;
            for (int64_t h = 0; h < heads; ++h) {
                off[static_cast<size_t>(h)] += times * difference(b, h);
                all[static_cast<size_t>(h)] += times * norm(b, h);
            }
        }
        double sum = 0, living = 0;
        for (size_t h = 0; h < off.size(); ++h) {
            if (all[h] == 0) continue;
            sum += std::sqrt(off[h] / all[h]);
            ++living;
        }
        errors.push_back(sum / living);
    }
    return errors;
}

}  // namespace msa::experiments
