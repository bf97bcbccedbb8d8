// SPDX-License-Identifier: MIT
#include "core/select/attention_rows.h"

#include <algorithm>
#include <numeric>

#include "core/cpu/tile.h"

namespace msa {
namespace {

int64_t sequence_of(const Problem& p, int64_t token) {
    const auto& starts = p.batch.cu_seqlens_k();
    return std::upper_bound(starts.begin(), starts.end(), token) - starts.begin() - 1;
}

/// A strip of queries of one head, and the keys packed for their group.
struct RowStrip {
    int64_t first, count, head;
    QueryRange packed;  // positions of the keys in the panels
    const float* panels;
};

void visit_strip(const Problem& p, View<const float, 3> q, std::span<const int64_t> positions,
                 int64_t window, const RowStrip& strip,
                 const std::function<void(const AttentionRow&)>& visit) {
    const auto factor = static_cast<float>(p.softmax_scale() * cpu::kLog2E);
    const int64_t keys = strip.packed.end - strip.packed.begin;
    Tensor<float, 2> rows({strip.count, p.head_dim});
    Tensor<float, 2> logits({strip.count, cpu::padded(keys) + cpu::kLanes});
    for (int64_t n = 0; n < strip.count; ++n)
        for (int64_t d = 0; d < p.head_dim; ++d)
            rows(n, d) = factor * q(strip.first + n, strip.head, d);
    cpu::multiply({rows.data(), p.head_dim, strip.count}, {strip.panels, p.head_dim, keys},
                  logits.data(), logits.extent(1));
    for (int64_t n = 0; n < strip.count; ++n) {
        const int64_t end = positions[static_cast<size_t>(strip.first + n)] + 1;
        const QueryRange seen{std::max<int64_t>(0, end - std::min(window, end)), end};
        float* weights = &logits(n, seen.begin - strip.packed.begin);
        cpu::OnlineSum sum;
        cpu::softmax_step(weights, seen.end - seen.begin, sum);
        const auto share = static_cast<float>(1 / sum.sum);
        for (int64_t j = 0; j < seen.end - seen.begin; ++j) weights[j] *= share;
        visit({strip.first + n, strip.head, seen, weights});
    }
}

}  // namespace

std::vector<int64_t> sequence_tokens(const Problem& p, int64_t sequence, QueryRange positions) {
    std::vector<int64_t> tokens(static_cast<size_t>(positions.end - positions.begin));
    std::iota(tokens.begin(), tokens.end(),
              p.batch.cu_seqlens_k()[static_cast<size_t>(sequence)] + positions.begin);
    return tokens;
}

int64_t sequence_length(const Problem& p, int64_t sequence) {
    const auto s = static_cast<size_t>(sequence);
    return p.batch.cu_seqlens_k()[s + 1] - p.batch.cu_seqlens_k()[s];
}

int64_t prompt_length(const SelectorLayer& layer, int64_t sequence) {
    const int64_t length = sequence_length(layer.problem, sequence);
    return layer.prompt > 0 ? std::min(layer.prompt, length) : length;
}

void for_each_attention_row(const SelectorLayer& layer, std::span<const int64_t> tokens,
                            int64_t window, const std::function<void(const AttentionRow&)>& visit) {
    if (tokens.empty()) return;
    const Problem& p = layer.problem;
    const Tensor<float, 3> q = layer.read_q(tokens);
    const int64_t start =
        p.batch.cu_seqlens_k()[static_cast<size_t>(sequence_of(p, tokens.front()))];
    std::vector<int64_t> positions;
    for (int64_t token : tokens) positions.push_back(token - start);
    const int64_t oldest = positions.front() + 1;
    const QueryRange packed{std::max<int64_t>(0, oldest - std::min(window, oldest)),
                            positions.back() + 1};
    const int64_t count = packed.end - packed.begin, n = q.extent(0);
#pragma omp parallel for schedule(dynamic)
    for (int64_t r = 0; r < p.kv_heads; ++r) {
        Tensor<float, 1> panels({cpu::panel_floats(p.head_dim, count)});
        const float* keys = layer.k.data() + ((start + packed.begin) * p.kv_heads + r) * p.head_dim;
        cpu::pack_keys(keys, p.kv_heads * p.head_dim, count, p.head_dim, panels.data());
        for (int64_t first = 0; first < n; first += cpu::kStrip)
            for (int64_t h = r * p.group_size(); h < (r + 1) * p.group_size(); ++h)
                visit_strip(p, q, positions, window,
                            {first, std::min(cpu::kStrip, n - first), h, packed, panels.data()},
                            visit);
    }
}

}  // namespace msa
