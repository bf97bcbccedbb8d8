// SPDX-License-Identifier: MIT
#include "core/cpu/block_attention.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace msa::cpu {
namespace {

/// What a sink leaves of a row's output, and the row's lse with it.
struct WithSink {
    float share, lse;
};

WithSink with_sink(double lse, double sink) {
    if (sink == -double{kInfinity}) return {1, static_cast<float>(lse)};
    const double above = sink - lse;
    const double joined =
        above > 0 ? sink + std::log1p(std::exp(-above)) : lse + std::log1p(std::exp(above));
    return {static_cast<float>(1 / (1 + std::exp(above))), static_cast<float>(joined)};
}

}  // namespace

void add_block(const BlockRows& rows, Panels keys, Panels values, float* logits) {
    const int64_t stride = padded(keys.columns), width = padded(values.columns);
    for (int64_t row = 0; row < rows.count; row += kBatch) {
        const int64_t batch = std::min(kBatch, rows.count - row);
        std::array<int64_t, kBatch> seen, hidden{};
        std::array<float, kBatch> factor;
        int64_t most = 0;
        for (int64_t r = 0; r < batch; ++r) {
            const int64_t query = (row + r) / rows.heads;
            seen[static_cast<size_t>(r)] = rows.seen[query];
            if (rows.hidden != nullptr) hidden[static_cast<size_t>(r)] = rows.hidden[query];
            most = std::max(most, rows.seen[query]);
        }
        multiply({rows.q + row * keys.depth, keys.depth, batch}, {keys.data, keys.depth, most},
                 logits, stride);
        for (int64_t r = 0; r < batch; ++r)
            cap_row(logits + r * stride, seen[static_cast<size_t>(r)], rows.cap);
        softmax_steps(logits, stride, batch, hidden.data(), seen.data(), rows.softmax + row,
                      factor.data());
        add_values(logits, stride, batch, values, seen.data(), factor.data(),
                   rows.sums + row * width, width, hidden.data());
    }
}

void finish_row(const float* sums, const OnlineSum& softmax, View<float, 1> out, float& lse) {
    lse = log_sum(softmax);
    const auto weight = static_cast<float>(softmax.sum == 0 ? 0 : 1 / softmax.sum);
    for (int64_t d = 0; d < out.size(); ++d) out(d) = weight * sums[d];
}

void add_sinks(View<const float, 1> sinks, View<float, 3> out, View<float, 2> lse, int threads) {
    if (!sinks) return;
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < out.extent(0); ++i)
        for (int64_t h = 0; h < out.extent(1); ++h) {
            const WithSink joined = with_sink(double{lse(i, h)}, double{sinks(h)});
            lse(i, h) = joined.lse;
            for (int64_t d = 0; d < out.extent(2); ++d) out(i, h, d) *= joined.share;
        }
}

}  // namespace msa::cpu
