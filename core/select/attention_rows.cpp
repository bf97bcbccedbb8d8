// SPDX-License-Identifier: MIT
#include "core/select/attention_rows.h"

#include <algorithm>
#include <numeric>

#include "core/select/rows_held.h"

namespace msa {
namespace {

constexpr int64_t kMostRows = 256;  // held at a time

}  // namespace

Mirror<3> mass_at(const SelectorLayer& layer, std::span<const int64_t> tokens, int64_t block_size) {
    Problem p = layer.problem.with_query_rows(tokens);
    p.block_size = block_size;
    auto mass = layer.backend.make<float, 3>({p.queries(), p.kv_heads, p.blocks()});
    const Mirror<3> q = layer.read_q(tokens);
    layer.backend.block_mass(p, {q.operand(), layer.k.operand(), layer.sinks}, {mass, {}});
    layer.backend.finish();
    return {layer.backend, std::move(mass)};
}

void for_each_mass(const SelectorLayer& layer, std::span<const int64_t> tokens, int64_t block_size,
                   const std::function<void(int64_t first, View<const float, 3> mass)>& visit) {
    const Problem& p = layer.problem;
    const int64_t row = p.kv_heads * ceil_div(p.batch.longest_keys(), block_size);
    const int64_t step = std::min(rows_held(row), kMostRows);
    for (int64_t first = 0; first < std::ssize(tokens); first += step) {
        const int64_t count = std::min(step, std::ssize(tokens) - first);
        const Mirror<3> mass =
            mass_at(layer, tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                    block_size);
        visit(first, mass.host());
    }
}

Tensor<float, 2> prompt_mass(const SelectorLayer& layer, int64_t sequence) {
    const Problem& p = layer.problem;
    Tensor<float, 2> received({p.kv_heads, p.blocks()});
    if (layer.prompt == 0) return received;
    const std::vector<int64_t> tokens =
        sequence_tokens(p, sequence, {0, prompt_length(layer, sequence)});
    for_each_mass(layer, tokens, p.block_size, [&](int64_t, View<const float, 3> mass) {
        for (int64_t n = 0; n < mass.extent(0); ++n)
            for (int64_t at = 0; at < received.size(); ++at)
                received.data()[at] += mass[n].data()[at];
    });
    return received;
}

std::vector<int64_t> sequence_tokens(const Problem& p, int64_t sequence, QueryRange positions) {
    std::vector<int64_t> tokens(static_cast<size_t>(positions.end - positions.begin));
    std::iota(tokens.begin(), tokens.end(), sequence_start(p, sequence) + positions.begin);
    return tokens;
}

int64_t sequence_start(const Problem& p, int64_t sequence) {
    return p.batch.cu_seqlens_k()[static_cast<size_t>(sequence)];
}

int64_t sequence_length(const Problem& p, int64_t sequence) {
    return sequence_start(p, sequence + 1) - sequence_start(p, sequence);
}

int64_t sequence_of(const Problem& p, int64_t token) {
    const std::vector<int64_t>& starts = p.batch.cu_seqlens_k();
    return std::upper_bound(starts.begin(), starts.end(), token) - starts.begin() - 1;
}

int64_t position_of(const Problem& p, int64_t token) {
    return token - sequence_start(p, sequence_of(p, token));
}

int64_t prompt_length(const SelectorLayer& layer, int64_t sequence) {
    const int64_t length = sequence_length(layer.problem, sequence);
    return layer.prompt > 0 ? std::min(layer.prompt, length) : length;
}

std::vector<int64_t> counted_tokens(const SelectorLayer& layer) {
    if (!layer.counted.empty()) return {layer.counted.begin(), layer.counted.end()};
    std::vector<int64_t> tokens;
    for (int64_t s = 0; s < layer.problem.sequences(); ++s)
        for (int64_t token = sequence_start(layer.problem, s) + layer.prompt;
             token < sequence_start(layer.problem, s + 1); ++token)
            tokens.push_back(token);
    return tokens;
}

}  // namespace msa
