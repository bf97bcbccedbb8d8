// SPDX-License-Identifier: MIT
#include "experiments/measure/measured_chunk.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "analysis/output_error.h"
#include "analysis/sink.h"
#include "core/tolerance.h"

namespace msa::experiments::measure {

namespace {

/// How far a sum of probabilities of queries q [Nq, Hq, dh] may be off, by rounding alone, where
/// dense attention has lse [Nq, Hq] and the longest key is k_norm.
double chunk_mass_bound(const Problem& p, View<const float, 3> q, double k_norm,
                        View<const float, 2> lse) {
    const auto keys = static_cast<double>(p.batch.longest_keys());
    const double logit = main_logit_bound(p, largest_norm(q), k_norm);
    double magnitude = 0;
    for (int64_t at = 0; at < lse.size(); ++at)
        if (std::isfinite(lse.data()[at]))
            magnitude = std::max(magnitude, std::abs(double{lse.data()[at]}));
    return token_mass_bound(logit, keys, magnitude);
}

}  // namespace

std::vector<BlockRows> block_rows(const Problem& chunk, const analysis::QueryBlocks& all,
                                  QueryRange range) {
    std::vector<BlockRows> blocks;
    for (int64_t b = all.at(range.begin); b < all.at(range.end); ++b) {
        const QueryRange of = all.range(b);
        const QueryRange rows{of.begin - range.begin, of.end - range.begin};
        blocks.push_back({b, rows, chunk.with_queries(rows)});
    }
    return blocks;
}

DenseChunk::DenseChunk(const ChunkView& of, int64_t sink_tokens)
    : attention(of.dense()),
      first_logits(analysis::SinkMass(of.problem.query_heads, sink_tokens)
                       .logits(of.problem, of.host_q, of.view().data.k)) {}

MeasuredChunk::MeasuredChunk(const ChunkView& of, const SelectorLayer& layer_of,
                             const LayerQueries& all, QueryRange range_of, double k_norm,
                             const DenseChunk& dense_of, Mirror<3> mass_of, bool oracle_by_logit)
    : queries(of),
      layer(layer_of),
      problem(of.problem),
      range(range_of),
      kinds(all.kinds_of(range)),
      blocks(block_rows(of.problem, all.blocks, range)),
      dense(dense_of.attention),
      first_logits(dense_of.first_logits),
      masses(std::move(mass_of)),
      mass(masses.host()),
      norm(analysis::squared_differences(dense.out, {}, of.problem.kv_heads)),
      mass_bound(chunk_mass_bound(of.problem, host_view(of.host_q), k_norm, host_view(dense.lse))),
      by_logit_(oracle_by_logit) {}

const Tensor<int32_t, 3>& MeasuredChunk::oracle(const SelectionRule& rule) const {
    for (const auto& [known, ids] : oracles_)
        if (known == rule) return ids;
    const Mirror<3>& scores = by_logit_ ? queries.chunk.max_logit() : masses;
    oracles_.emplace_back(rule, pick(queries.backend(), problem, rule, scores.floats()));
    return oracles_.back().second;
}

}  // namespace msa::experiments::measure
