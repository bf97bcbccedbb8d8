// SPDX-License-Identifier: MIT
#include "core/select/received_mass.h"

#include <algorithm>

#include "core/select/attention_rows.h"

namespace msa {

Tensor<float, 3> mass_at(const SelectorLayer& layer, int64_t sequence,
                         std::span<const int64_t> positions) {
    const Problem& p = layer.problem;
    Tensor<float, 3> mass({std::ssize(positions), p.kv_heads, p.blocks()});
    std::vector<int64_t> tokens(positions.begin(), positions.end());
    for (int64_t& token : tokens) token += p.batch.cu_seqlens_k()[static_cast<size_t>(sequence)];
    for_each_attention_row(layer, tokens, kAllKeys, [&](const AttentionRow& row) {
        const View<float, 1> sums = mass.view()[row.query][row.head / p.group_size()];
        for (int64_t b = 0; b < visible_blocks(row.keys.end, p.block_size); ++b) {
            float sum = 0;
            for (int64_t j = b * p.block_size; j < std::min((b + 1) * p.block_size, row.keys.end);
                 ++j)
                sum += row.weights[j];
            sums(b) += sum / static_cast<float>(p.group_size());
        }
    });
    return mass;
}

Tensor<float, 2> prompt_mass(const SelectorLayer& layer, int64_t sequence) {
    constexpr int64_t kTile = 256;
    const Problem& p = layer.problem;
    Tensor<float, 2> received({p.kv_heads, p.blocks()});
    if (layer.prompt == 0) return received;
    std::vector<int64_t> positions;
    const int64_t end = prompt_length(layer, sequence);
    for (int64_t first = 0; first < end; first += kTile) {
        positions.clear();
        for (int64_t i = first; i < std::min(first + kTile, end); ++i) positions.push_back(i);
        const Tensor<float, 3> mass = mass_at(layer, sequence, positions);
        for (int64_t n = 0; n < mass.extent(0); ++n)
            for (int64_t at = 0; at < received.size(); ++at)
                received.data()[at] += mass.view()[n].data()[at];
    }
    return received;
}

}  // namespace msa
