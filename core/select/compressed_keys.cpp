// SPDX-License-Identifier: MIT
#include "core/select/compressed_keys.h"

#include "core/cpu/tile.h"
#include "core/select/block_vectors.h"

namespace msa {
namespace {

/// Adds the softmax of one head of query i over its `pieces` pieces.
void add_attention(const Problem& p, View<const float, 1> q, cpu::Panels keys, float* attention) {
    const auto factor = static_cast<float>(p.softmax_scale() * cpu::kLog2E);
    Tensor<float, 1> scaled(q.shape()), logits({cpu::padded(keys.columns) + cpu::kLanes});
    for (int64_t d = 0; d < q.size(); ++d) scaled(d) = factor * q(d);
    cpu::multiply({scaled.data(), q.size(), 1}, keys, logits.data(), logits.size());
    cpu::OnlineSum sum;
    cpu::softmax_step(logits.data(), keys.columns, sum);
    const auto all = static_cast<float>(sum.sum);
    for (int64_t n = 0; n < keys.columns; ++n) attention[n] += logits(n) / all;
}

}  // namespace

CompressedKeys::CompressedKeys(const SelectorLayer& layer) {
    const Problem& p = layer.problem;
    for (size_t s = 0; s + 1 < p.batch.cu_seqlens_k().size(); ++s) {
        const int64_t first = p.batch.cu_seqlens_k()[s];
        const int64_t pieces = whole_pieces(p.batch.cu_seqlens_k()[s + 1] - first);
        Tensor<float, 2> means({pieces, p.head_dim});
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            for (int64_t n = 0; n < pieces; ++n)
                mean_of_keys(key_rows(layer.k, r, first + n * kPieceStride, kPieceTokens),
                             means.view()[n]);
            panels_.emplace_back(Shape<1>{cpu::panel_floats(p.head_dim, pieces)});
            cpu::pack_keys(means.data(), p.head_dim, pieces, p.head_dim, panels_.back().data());
        }
    }
}

void CompressedKeys::score(const SelectorChunk& chunk, Fold fold, View<float, 3> scores) const {
    const Problem& p = chunk.problem;
    const std::vector<KeyRange> visible = visible_keys(p);
    const std::vector<int64_t> sequence = query_sequences(p);
#pragma omp parallel for schedule(dynamic, 16) if (p.queries() > kSmall)
    for (int64_t i = 0; i < p.queries(); ++i) {
        const auto row = static_cast<size_t>(i);
        const int64_t tokens = visible[row].count, pieces = whole_pieces(tokens);
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            std::vector<float> attention(static_cast<size_t>(pieces), 0.0F);
            const float* panels =
                panels_[static_cast<size_t>(sequence[row] * p.kv_heads + r)].data();
            for (int64_t h = r * p.group_size(); pieces > 0 && h < (r + 1) * p.group_size(); ++h)
                add_attention(p, chunk.q[i][h], {panels, p.head_dim, pieces}, attention.data());
            for (int64_t b = 0; b < visible_blocks(tokens, p.block_size); ++b)
                scores(i, r, b) = fold(attention, b * p.block_size, (b + 1) * p.block_size);
        }
    }
}

}  // namespace msa
