// SPDX-License-Identifier: MIT
// Eviction goes block by block and query by query: plain host code over the fetched P_b.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "core/select/attention_rows.h"
#include "core/select/per_rule.h"
#include "core/select/selector.h"

namespace msa {
namespace {

constexpr float kEvicted = -std::numeric_limits<float>::infinity();

/// The blocks that the rule keeps of those that have not been evicted, ascending.
std::vector<int64_t> survivors(const SelectionRule& rule, int64_t blocks,
                               View<const float, 1> received) {
    std::vector<int64_t> kept, free;
    for (int64_t b = 0; b < blocks; ++b) {
        if (is_forced(rule, b, blocks))
            kept.push_back(b);
        else if (received(b) > kEvicted)
            free.push_back(b);
    }
    const int64_t room = std::clamp<int64_t>(rule.top_k - std::ssize(kept), 0, std::ssize(free));
    std::partial_sort(free.begin(), free.begin() + room, free.end(), [&](int64_t a, int64_t b) {
        return received(a) != received(b) ? received(a) > received(b) : a < b;
    });
    kept.insert(kept.end(), free.begin(), free.begin() + room);
    std::sort(kept.begin(), kept.end());
    return kept;
}

class H2oSelector final : public Selector {
public:
    explicit H2oSelector(Phases phase) : phase_(phase) {}

    std::string_view name() const override {
        return phase_ == Phases::decode ? "h2o" : "h2o-streamed";
    }
    std::string_view rule() const override {
        return phase_ == Phases::decode
                   ? "attention that all queries before have paid to the block among the blocks "
                     "that were kept for them, mean over the group's heads; a block once evicted "
                     "is lost, the prompt is dense; half the budget is the newest blocks (H2O, "
                     "sequential, arXiv 2306.14048)"
                   : "h2o with eviction from the first token of the prompt on, which the source "
                     "attends to densely (H2O, sequential, arXiv 2306.14048)";
    }
    std::string_view note() const override {
        return phase_ == Phases::decode
                   ? "whole blocks are evicted, the source's unit is a token"
                   : "evicts during prefill, where the source is dense; whole blocks";
    }
    Family family() const override { return Family::queries; }
    Needs needs() const override { return {.queries = true, .rule = true, .phases = phase_}; }
    /// The attention that it adds up is paid anyway.
    PolicyCost cost(const Problem&, int64_t) const override { return {}; }
    void prepare(const SelectorLayer&) override {
        caches_.clear();
        prompts_.clear();
    }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange>& visible = visible_keys(p);
        const std::vector<int64_t> sequence = query_sequences(p);
        const View<const float, 3> mass = chunk.mass().host();
        const SelectionRule rule = adjust(layer.rule, layer.prompt);
        Cache& cache = caches_[layer.rule];
        Tensor<float, 3> scores(mass.shape());
        for (int64_t i = 0; i < p.queries(); ++i) {
            if (sequence[static_cast<size_t>(i)] != cache.sequence) {
                cache.sequence = sequence[static_cast<size_t>(i)];
                const Tensor<float, 2>& before = prompt(layer, cache.sequence);
                cache.received = Tensor<float, 2>(before.shape());
                std::copy_n(before.data(), before.size(), cache.received.data());
            }
            std::copy_n(cache.received.data(), cache.received.size(), &scores(i, 0, 0));
            const int64_t blocks =
                visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size);
            for (int64_t r = 0; r < p.kv_heads; ++r)
                step(rule, blocks, mass[i][r], cache.received.view()[r]);
        }
        return {layer.backend, std::move(scores)};
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        return force(asked, 0, asked.top_k / 2);
    }

private:
    /// What is left of a sequence at one budget.
    struct Cache {
        int64_t sequence = -1;
        Tensor<float, 2> received;  // [Hkv, B], kEvicted where the block is gone
    };

    /// prompt_mass, which all budgets begin with.
    const Tensor<float, 2>& prompt(const SelectorLayer& layer, int64_t sequence) {
        const auto [at, is_new] = prompts_.try_emplace(sequence);
        if (is_new) at->second = prompt_mass(layer, sequence);
        return at->second;
    }

    /// One query of one group: the blocks that the rule keeps receive its attention, normalised
    /// over them; the others are evicted.
    static void step(const SelectionRule& rule, int64_t blocks, View<const float, 1> mass,
                     View<float, 1> received) {
        const std::vector<int64_t> kept = survivors(rule, blocks, received);
        float sum = 0;
        for (int64_t b : kept) sum += mass(b);
        for (int64_t b = 0; b < blocks; ++b) {
            const bool survives = std::binary_search(kept.begin(), kept.end(), b);
            received(b) = survives ? received(b) + (sum > 0 ? mass(b) / sum : 0) : kEvicted;
        }
    }

    Phases phase_;
    PerRule<Cache> caches_;
    std::map<int64_t, Tensor<float, 2>> prompts_;  // of the sequences
};

}  // namespace

std::unique_ptr<Selector> make_h2o_selector() {
    return std::make_unique<H2oSelector>(Phases::decode);
}

std::unique_ptr<Selector> make_h2o_streamed_selector() {
    return std::make_unique<H2oSelector>(Phases::prefill);
}

}  // namespace msa
