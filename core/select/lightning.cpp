// SPDX-License-Identifier: MIT
#include "core/select/lightning.h"

#include <algorithm>
#include <numeric>

#include "core/select/best_blocks.h"
#include "core/select/rows_held.h"

namespace msa {

void for_each_lightning_row(
    Backend& backend, const Problem& p, const LightningOperands& in,
    const std::function<void(int64_t row, View<const float, 1> scores)>& visit) {
    Problem tokens = p;
    tokens.block_size = 1;
    tokens.query_heads = tokens.kv_heads = in.index_q.shape()[1];
    tokens.index_dim = in.index_q.shape()[2];
    tokens.index_scale_override = 1.0;
    const int64_t heads = tokens.kv_heads, keys = tokens.blocks();
    const int64_t step = rows_held(heads * keys);
    const bool weighted = in.weights.data() != nullptr;
    const View<const float, 3> index_q = in.index_q.floats();
    for (int64_t begin = 0; begin < tokens.queries(); begin += step) {
        const int64_t count = std::min(step, tokens.queries() - begin);
        const Problem part = tokens.with_queries({begin, begin + count});
        auto there = backend.make<float, 3>({count, heads, keys});
        backend.index_scores(part, {index_q.slice(begin, count), in.index_k.floats()}, there);
        const Mirror<3> products(backend, std::move(there));
        const View<const float, 3> from = products.host();
        const std::vector<KeyRange>& visible = visible_keys(part);
#pragma omp parallel for num_threads(backend.host_threads())
        for (int64_t i = 0; i < count; ++i) {
            const int64_t seen = visible[static_cast<size_t>(i)].count;
            Tensor<float, 1> sums({seen});
            float* const sum = sums.data();
            for (int64_t h = 0; h < heads; ++h) {
                const float weight = weighted ? in.weights(begin + i, 0, h) : 1.0F;
                const float* const product = from[i][h].data();
                for (int64_t j = 0; j < seen; ++j) sum[j] += weight * std::max(product[j], 0.0F);
            }
            visit(begin + i, sums);
        }
    }
}

Tensor<float, 3> lightning_block_scores(Backend& backend, const Problem& p,
                                        const LightningOperands& in) {
    Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
    for_each_lightning_row(backend, p, in, [&](int64_t i, View<const float, 1> tokens) {
        const int64_t seen = tokens.size();
        for (int64_t b = 0; b < visible_blocks(seen, p.block_size); ++b) {
            const float* first = tokens.data() + b * p.block_size;
            const float* last = tokens.data() + std::min((b + 1) * p.block_size, seen);
            const float largest = *std::max_element(first, last);
            for (int64_t r = 0; r < p.kv_heads; ++r) scores(i, r, b) = largest;
        }
    });
    return scores;
}

std::vector<int64_t> highest(View<const float, 1> scores, int64_t count) {
    std::vector<int64_t> all(static_cast<size_t>(scores.size()));
    std::iota(all.begin(), all.end(), 0);
    if (scores.size() <= count) return all;
    std::nth_element(all.begin(), all.begin() + count, all.end(), [&](int64_t a, int64_t b) {
        const float of_a = rank_of(scores(a)), of_b = rank_of(scores(b));
        return of_a != of_b ? of_a > of_b : a < b;
    });
    all.resize(static_cast<size_t>(count));
    std::sort(all.begin(), all.end());
    return all;
}

void LightningReader::prepare(const SelectorLayer& layer) {
    if (layer.learned.dsa_heads == 0) return;
    Tensor<float, 3> all = layer.read_learned(LearnedOperand::dsa_k, {});
    Tensor<float, 2> keys({all.extent(0), all.extent(2)}, Fill::nothing);
    std::copy_n(all.data(), all.size(), keys.data());
    keys_ = {layer.backend, std::move(keys)};
}

LightningOperands LightningReader::operands(const SelectorLayer& layer,
                                            const SelectorChunk& chunk) const {
    if (layer.learned.dsa_heads == 0) return {chunk.index_q, keys(layer), {}};
    return {{layer.backend, layer.read_learned(LearnedOperand::dsa_q, chunk.tokens)},
            keys(layer),
            layer.read_learned(LearnedOperand::dsa_w, chunk.tokens)};
}

}  // namespace msa
