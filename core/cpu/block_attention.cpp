// SPDX-License-Identifier: MIT
#include "core/cpu/block_attention.h"

#include <algorithm>
#include <array>

namespace msa::cpu {

void add_block(const BlockRows& rows, Panels keys, Panels values, float* logits) {
    const int64_t stride = padded(keys.columns), width = padded(values.columns);
    for (int64_t row = 0; row < rows.count; row += kStrip) {
        const int64_t strip = std::min(kStrip, rows.count - row);
        std::array<int64_t, kStrip> seen{};
        std::array<float, kStrip> factor{};
        for (int64_t r = 0; r < strip; ++r)
            seen[static_cast<size_t>(r)] = rows.seen[(row + r) / rows.heads];
        const int64_t most = *std::max_element(seen.begin(), seen.end());
        multiply({rows.q + row * keys.depth, keys.depth, strip}, {keys.data, keys.depth, most},
                 logits, stride);
        for (int64_t r = 0; r < strip; ++r) {
            const auto at = static_cast<size_t>(r);
            factor[at] = softmax_step(logits + r * stride, seen[at], rows.softmax[row + r]).factor;
        }
        add_values(logits, stride, strip, values, seen.data(), factor.data(),
                   rows.sums + row * width, width);
    }
}

void finish_row(const float* sums, const OnlineSum& softmax, View<float, 1> out, float& lse) {
    lse = log_sum(softmax);
    const auto weight = static_cast<float>(softmax.sum == 0 ? 0 : 1 / softmax.sum);
    for (int64_t d = 0; d < out.size(); ++d) out(d) = weight * sums[d];
}

}  // namespace msa::cpu
