// SPDX-License-Identifier: MIT
#include "core/select/block_vectors.h"

#include <algorithm>

#include "core/cpu/tile.h"

namespace msa {

KeyRows key_rows(View<const float, 3> k, int64_t group, int64_t first, int64_t count) {
    const int64_t dims = k.extent(2), stride = k.extent(1) * dims;
    return {k.data() + first * stride + group * dims, stride, count};
}

void mean_of_keys(const KeyRows& keys, View<float, 1> mean) {
    std::fill_n(mean.data(), mean.size(), 0.0F);
    for (int64_t j = 0; j < keys.count; ++j)
        for (int64_t d = 0; d < mean.size(); ++d) mean(d) += keys[j][d];
    for (int64_t d = 0; d < mean.size(); ++d) mean(d) /= static_cast<float>(keys.count);
}

void add_query(View<const float, 1> q, View<float, 1> sum) {
    for (int64_t d = 0; d < q.size(); ++d) sum(d) += q(d);
}

void BlockVectors::prepare(const SelectorLayer& layer) {
    const Problem& p = layer.problem;
    panels_.clear();
    for (size_t s = 0; s + 1 < p.batch.cu_seqlens_k().size(); ++s) {
        const int64_t first = p.batch.cu_seqlens_k()[s],
                      tokens = p.batch.cu_seqlens_k()[s + 1] - first;
        const int64_t blocks = ceil_div(tokens, p.block_size);
        Tensor<float, 2> vectors({blocks, width_});
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            for (int64_t b = 0; b < blocks; ++b)
                of_keys_(key_rows(layer.k, r, first + b * p.block_size,
                                  std::min(p.block_size, tokens - b * p.block_size)),
                         vectors.view()[b]);
            panels_.emplace_back(Shape<1>{cpu::panel_floats(width_, blocks)});
            cpu::pack_keys(vectors.data(), width_, blocks, width_, panels_.back().data());
        }
    }
}

void BlockVectors::score(const SelectorLayer& layer, const Problem& p, View<const float, 3> q,
                         View<float, 3> scores) const {
    const std::vector<KeyRange> visible = visible_keys(p);
    const std::vector<int64_t> sequence = query_sequences(p);
    for (const QueryRange& queries : query_tiles(p, cpu::kStrip))
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const int64_t s = sequence[static_cast<size_t>(queries.begin)];
            const float* panels = panels_[static_cast<size_t>(s * p.kv_heads + r)].data();
            score_strip(layer, p, q, visible, {queries, r, panels}, scores);
        }
}

void BlockVectors::score_strip(const SelectorLayer& layer, const Problem& p, View<const float, 3> q,
                               const std::vector<KeyRange>& visible, const Strip& strip,
                               View<float, 3> scores) const {
    const auto [queries, group, panels] = strip;
    const int64_t blocks =
        visible_blocks(visible[static_cast<size_t>(queries.end - 1)].count, p.block_size);
    if (blocks == 0) return;
    const int64_t rows = queries.end - queries.begin, stride = cpu::padded(blocks);
    Tensor<float, 2> vectors({rows, width_}), products({rows, stride});
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t h = group * p.group_size(); h < (group + 1) * p.group_size(); ++h)
            of_query_(q[queries.begin + row][h], vectors.view()[row]);
    cpu::multiply({vectors.data(), width_, rows}, {panels, width_, blocks}, products.data(),
                  stride);
    Tensor<float, 1> local({width_});
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t i = queries.begin + row;
        const KeyRange seen = visible[static_cast<size_t>(i)];
        std::copy_n(&products(row, 0), visible_blocks(seen.count, p.block_size),
                    scores[i][group].data());
        const int64_t partial = seen.count % p.block_size, begin = seen.count - partial;
        if (partial == 0) continue;
        of_keys_(key_rows(layer.k, group, seen.first + begin, partial), local);
        float& score = scores(i, group, begin / p.block_size);
        score = 0;
        for (int64_t d = 0; d < width_; ++d) score += vectors(row, d) * local(d);
    }
}

}  // namespace msa
