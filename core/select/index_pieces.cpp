// SPDX-License-Identifier: MIT
#include "core/select/index_pieces.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/indexer/qsa_kl.h"
#include "core/select/block_vectors.h"
#include "core/select/cost.h"

namespace msa {

IndexPieces::IndexPieces(const SelectorLayer& layer, const Mirror<2>& keys, int64_t tokens)
    : tokens_(tokens), starts_(piece_starts(layer.problem.batch.cu_seqlens_k(), tokens)) {
    const std::vector<int64_t>& begin = layer.problem.batch.cu_seqlens_k();
    if (starts_.back() == 0) return;
    const View<const float, 2> all = keys.host();
    const View<const float, 3> rows(all.data(), {all.extent(0), 1, all.extent(1)});
    Tensor<float, 2> means({starts_.back(), all.extent(1)});
    for (size_t s = 0; s + 1 < begin.size(); ++s)
        for (int64_t n = 0; n < starts_[s + 1] - starts_[s]; ++n)
            mean_of_keys(key_rows(rows, 0, begin[s] + n * tokens, tokens),
                         means.view()[starts_[s] + n]);
    means_ = {layer.backend, std::move(means)};
}

IndexPieces::IndexPieces(const SelectorLayer& layer, Tensor<float, 2> of_pieces, int64_t tokens)
    : tokens_(tokens), starts_(piece_starts(layer.problem.batch.cu_seqlens_k(), tokens)) {
    require(of_pieces.extent(0) == starts_.back(), "qsa_k has ", of_pieces.extent(0),
            " pieces, the sequences have ", starts_.back(), " of ", tokens,
            " tokens; they must agree");
    if (starts_.back() > 0) means_ = {layer.backend, std::move(of_pieces)};
}

void IndexPieces::for_each_row(
    Backend& backend, const Problem& p, LightningOperands operands,
    const std::function<void(int64_t row, View<const float, 1> scores)>& visit) const {
    if (!means_) {
        for (int64_t i = 0; i < p.queries(); ++i) visit(i, {});
        return;
    }
    Problem pieces = p;
    std::vector<int64_t> newest;  // piece that each query sees as a whole
    for (const KeyRange& seen : visible_keys(p)) newest.push_back(seen.count / tokens_ - 1);
    pieces.batch = PackedBatch(p.batch.cu_seqlens_q(), starts_, newest);
    pieces.window.reset();  // counts tokens
    operands.index_k = means_;
    for_each_lightning_row(backend, pieces, operands, visit);
}

Tensor<float, 3> IndexPieces::block_scores(Backend& backend, const Problem& p,
                                           LightningOperands operands) const {
    Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
    std::fill_n(scores.data(), scores.size(), -std::numeric_limits<float>::infinity());
    for_each_row(backend, p, std::move(operands), [&](int64_t i, View<const float, 1> of_pieces) {
        for (int64_t n = 0; n < of_pieces.size(); ++n) {
            const int64_t first = n * tokens_, last = first + tokens_ - 1;
            for (int64_t b = first / p.block_size; b <= last / p.block_size; ++b)
                for (int64_t r = 0; r < p.kv_heads; ++r)
                    scores(i, r, b) = std::max(scores(i, r, b), of_pieces(n));
        }
    });
    return scores;
}

Tensor<float, 3> IndexPieces::qsa_scores(Backend& backend, const Problem& p,
                                         LightningOperands operands) const {
    Tensor<float, 3> scores = block_scores(backend, p, std::move(operands));
    for (int64_t i = 0; i < p.queries(); ++i) {
        const int64_t visible = visible_keys(p)[static_cast<size_t>(i)].count;
        const int64_t tail = tail_of(visible);
        for (int64_t b = tail / p.block_size; b < visible_blocks(visible, p.block_size); ++b)
            for (int64_t r = 0; tail < visible && r < p.kv_heads; ++r)
                scores(i, r, b) = std::numeric_limits<float>::infinity();
    }
    return scores;
}

double IndexPieces::seen(const Problem& phase, int64_t tokens) {
    return over_queries(phase, [&](int64_t keys) { return keys / tokens; });
}

PolicyCost cost_of_scored(const PolicyCost& of_keys, const Problem& phase, double scored) {
    const double keys = keys_seen(phase);
    if (keys == 0) return of_keys;
    return {of_keys.flops * (scored / keys), of_keys.bytes * (scored / keys)};
}

}  // namespace msa
