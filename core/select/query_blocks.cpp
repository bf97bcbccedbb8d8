// SPDX-License-Identifier: MIT
#include "core/select/query_blocks.h"

#include <algorithm>

#include "core/select/attention_rows.h"

namespace msa {

Tensor<float, 2> mean_query(const SelectorLayer& layer, int64_t sequence, int64_t block) {
    const Problem& p = layer.problem;
    const int64_t begin = block * p.block_size;
    const int64_t end = std::min(begin + p.block_size, sequence_length(p, sequence));
    const Mirror<3> rows = layer.read_q(sequence_tokens(p, sequence, {begin, end}));
    const View<const float, 3> q = rows.host();
    Tensor<float, 2> mean({p.query_heads, p.head_dim});
    for (int64_t i = 0; i < q.extent(0); ++i)
        for (int64_t at = 0; at < mean.size(); ++at) mean.data()[at] += q[i].data()[at];
    for (int64_t at = 0; at < mean.size(); ++at) mean.data()[at] /= static_cast<float>(q.extent(0));
    return mean;
}

Tensor<float, 3> query_block_means(const SelectorLayer& layer, const SelectorChunk& chunk) {
    const Problem& p = chunk.problem;
    const View<const float, 3> q = chunk.q.host();
    Tensor<float, 3> means(q.shape());
    if (layer.prompt > 0) {
        std::copy_n(q.data(), q.size(), means.data());
        return means;
    }
    const std::vector<KeyRange> visible = visible_keys(p);
    const std::vector<int64_t> sequence = query_sequences(p);
    int64_t of_sequence = -1, of_block = -1;
    Tensor<float, 2> mean;
    for (int64_t i = 0; i < p.queries(); ++i) {
        const auto row = static_cast<size_t>(i);
        if (visible[row].count == 0) continue;
        const int64_t block = (visible[row].count - 1) / p.block_size;
        if (sequence[row] != of_sequence || block != of_block) {
            of_sequence = sequence[row];
            of_block = block;
            mean = mean_query(layer, of_sequence, of_block);
        }
        std::copy_n(mean.data(), mean.size(), means.view()[i].data());
    }
    return means;
}

std::vector<int64_t> counted_of_blocks(const SelectorLayer& layer, int64_t sequence) {
    const Problem& p = layer.problem;
    std::vector<int64_t> counts(
        static_cast<size_t>(ceil_div(sequence_length(p, sequence), p.block_size)), 0);
    for (int64_t token : counted_tokens(layer))
        if (sequence_of(p, token) == sequence)
            ++counts[static_cast<size_t>(position_of(p, token) / p.block_size)];
    return counts;
}

}  // namespace msa
