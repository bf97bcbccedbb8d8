// SPDX-License-Identifier: MIT
#include "core/select/eviction.h"

#include <algorithm>

#include "core/select/best_blocks.h"

namespace msa {
namespace {

/// [blocks]: does the rule keep the block? Of those that have not been evicted, or are forced.
std::vector<bool> survivors(const SelectionRule& rule, int64_t blocks,
                            View<const float, 1> received) {
    std::vector<bool> survives(static_cast<size_t>(blocks));
    for (int64_t b = 0; b < blocks; ++b)
        survives[static_cast<size_t>(b)] = received(b) > kLeftOut || is_forced(rule, b, blocks);
    for (int64_t b : beyond_budget(rule, blocks, received))
        survives[static_cast<size_t>(b)] = false;
    return survives;
}

}  // namespace

void EvictingSelector::prepare(const SelectorLayer&) {
    caches_.clear();
    begun_.clear();
}

Mirror<3> EvictingSelector::score(const SelectorLayer& layer, const SelectorChunk& chunk) {
    const Problem& p = chunk.problem;
    const std::vector<KeyRange>& visible = visible_keys(p);
    const std::vector<int64_t> sequence = query_sequences(p);
    const View<const float, 3> mass = chunk.mass().host();
    const SelectionRule rule = adjust(layer.rule, layer.prompt);
    Cache& cache = caches_[layer.rule];
    Tensor<float, 3> scores(mass.shape());
    for (int64_t begin = 0, end = 0; begin < p.queries(); begin = end) {
        const int64_t of = sequence[static_cast<size_t>(begin)];
        while (end < p.queries() && sequence[static_cast<size_t>(end)] == of) ++end;
        if (of != cache.sequence) {
            cache.sequence = of;
            const Tensor<float, 2>& before = begun(layer, of);
            cache.received = Tensor<float, 2>(before.shape());
            std::copy_n(before.data(), before.size(), cache.received.data());
        }
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t i = begin; i < end; ++i) {
                const View<float, 1> received = cache.received.view()[r];
                std::copy_n(received.data(), received.size(), scores.view()[i][r].data());
                step(rule, visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size),
                     mass[i][r], received);
            }
    }
    return {layer.backend, std::move(scores)};
}

const Tensor<float, 2>& EvictingSelector::begun(const SelectorLayer& layer, int64_t sequence) {
    const auto [at, is_new] = begun_.try_emplace(sequence);
    if (is_new) at->second = begin(layer, sequence);
    return at->second;
}

void EvictingSelector::step(const SelectionRule& rule, int64_t blocks, View<const float, 1> mass,
                            View<float, 1> received) const {
    const std::vector<bool> survives = survivors(rule, blocks, received);
    float sum = 0;
    for (int64_t b = 0; b < blocks; ++b)
        if (survives[static_cast<size_t>(b)]) sum += mass(b);
    for (int64_t b = 0; b < blocks; ++b)
        received(b) = survives[static_cast<size_t>(b)]
                          ? receive(received(b), sum > 0 ? mass(b) / sum : 0)
                          : kLeftOut;
}

}  // namespace msa
