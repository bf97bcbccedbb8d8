// SPDX-License-Identifier: MIT
#include "core/select/compressed_keys.h"

#include "core/select/block_vectors.h"
#include "core/select/cost.h"
#include "core/select/rows_held.h"

namespace msa {
namespace {}  // namespace

CompressedKeys::CompressedKeys(const SelectorLayer& layer, const Pieces& of) : of_(of), starts_{0} {
    const Problem& p = layer.problem;
    const std::vector<int64_t>& tokens = p.batch.cu_seqlens_k();
    for (size_t s = 0; s + 1 < tokens.size(); ++s)
        starts_.push_back(starts_.back() + of_.whole(tokens[s + 1] - tokens[s]));
    if (starts_.back() == 0) return;
    const View<const float, 3> k = layer.k.host();
    Tensor<float, 3> pieces({starts_.back(), p.kv_heads, p.head_dim});
    for (size_t s = 0; s + 1 < tokens.size(); ++s)
        for (int64_t n = 0; n < starts_[s + 1] - starts_[s]; ++n)
            for (int64_t r = 0; r < p.kv_heads; ++r)
                mean_of_keys(key_rows(k, r, tokens[s] + n * of_.stride, of_.tokens),
                             pieces.view()[starts_[s] + n][r]);
    pieces_ = {layer.backend, std::move(pieces)};
}

Mirror<3> CompressedKeys::score(const SelectorLayer& layer, const SelectorChunk& chunk,
                                Fold fold) const {
    const Problem& p = chunk.problem;
    Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
    if (pieces_) {
        const int64_t step = rows_held(p.kv_heads * pieces_.shape()[0]);
        for (int64_t begin = 0; begin < p.queries(); begin += step) {
            const QueryRange range{begin, std::min(begin + step, p.queries())};
            const int64_t count = range.end - begin;
            score_part(layer.backend, p.with_queries(range), chunk.q.floats().slice(begin, count),
                       fold, scores.view().slice(begin, count));
        }
    }
    return {layer.backend, std::move(scores)};
}

void CompressedKeys::score_part(Backend& backend, const Problem& p, View<const float, 3> q,
                                Fold fold, View<float, 3> scores) const {
    const std::vector<KeyRange>& visible = visible_keys(p);
    std::vector<int64_t> newest;  // piece that each query sees as a whole
    for (const KeyRange& seen : visible) newest.push_back(of_.whole(seen.count) - 1);
    Problem pieces = p;
    pieces.batch = PackedBatch(p.batch.cu_seqlens_q(), starts_, newest);
    pieces.block_size = 1;
    pieces.window.reset();  // counts tokens
    pieces.softmax_scale_override = p.softmax_scale();
    auto there = backend.make<float, 3>({p.queries(), p.kv_heads, pieces.blocks()});
    backend.block_mass(pieces, {q, pieces_.floats()}, {there, {}});
    const Mirror<3> mass(backend, std::move(there));
    const View<const float, 3> attention = mass.host();
    const auto heads = static_cast<float>(p.group_size());
#pragma omp parallel for num_threads(backend.host_threads())
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const auto row = static_cast<size_t>(i);
            const std::span<const float> seen(attention[i][r].data(),
                                              static_cast<size_t>(newest[row] + 1));
            for (int64_t b = 0; b < visible_blocks(visible[row].count, p.block_size); ++b)
                scores(i, r, b) = heads * fold(of_, seen, b * p.block_size, (b + 1) * p.block_size);
        }
}

PolicyCost CompressedKeysSelector::do_cost(const Phase& phase) const {
    return per_head(phase.problem,
                    over_queries(phase.problem, [&](int64_t keys) { return of_.whole(keys); }));
}

}  // namespace msa
