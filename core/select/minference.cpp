// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <limits>

#include "core/select/attention_rows.h"
#include "core/select/per_rule.h"
#include "core/select/selector.h"

namespace msa {
namespace {

constexpr float kForced = std::numeric_limits<float>::infinity();

constexpr std::array kPatterns{"minference-vs", "window", "minference-bs"};

class MInferenceSelector final : public Selector {
public:
    std::string_view name() const override { return "minference"; }
    std::string_view rule() const override {
        return "for each group the pattern that keeps most mass at the budget on 64 queries of the "
               "layer: vertical-slash, A-shape (the window) or block-sparse, each with the forced "
               "blocks of its own (MInference with its pattern search, arXiv 2407.02490)";
    }
    std::string_view note() const override {
        return "charged as the dearest of its patterns, its search is offline as the source's; "
               "groups with vertical-slash or A-shape keep the first block too; a group has one "
               "pattern in all sequences";
    }
    std::vector<PolicyOption> options() override {
        return {{"sample", "queries that decide on the patterns", &sample_, 1, 65536}};
    }
    Family family() const override { return Family::queries; }
    Needs needs() const override { return {.queries = true, .rule = true}; }
    PolicyCost do_cost(const Phase& phase) const override {
        PolicyCost most;
        for (const char* pattern : kPatterns)
            most = std::max(
                most, make_selector(pattern)->cost(phase),
                [](const PolicyCost& a, const PolicyCost& b) { return a.flops < b.flops; });
        return most;
    }

    void prepare(const SelectorLayer& layer) override {
        for (size_t n = 0; n < kPatterns.size(); ++n) {
            patterns_[n] = make_selector(kPatterns[n]);
            patterns_[n]->prepare(layer);
        }
        search(layer);
    }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const std::vector<size_t>& best = best_[layer.rule];
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
        for (size_t n = 0; n < kPatterns.size(); ++n) {
            if (std::find(best.begin(), best.end(), n) == best.end()) continue;
            const Mirror<3> all = patterns_[n]->score(layer, chunk);
            const View<const float, 3> from = all.host();
            const int64_t first = rule_of(layer, layer.rule, n).forced_first;
            for (int64_t i = 0; i < scores.extent(0); ++i)
                for (int64_t r = 0; r < scores.extent(1); ++r) {
                    if (best[static_cast<size_t>(r)] != n) continue;
                    std::copy_n(from[i][r].data(), scores.extent(2), &scores(i, r, 0));
                    std::fill_n(&scores(i, r, 0), std::min(first, scores.extent(2)), kForced);
                }
        }
        return {layer.backend, std::move(scores)};
    }

private:
    SelectionRule rule_of(const SelectorLayer& layer, const SelectionRule& rule,
                          size_t pattern) const {
        return patterns_[pattern]->adjust(rule, layer.prompt);
    }

    /// Evenly spread queries: of those that count; in the decode phase of the prompt's later half.
    std::vector<int64_t> sample(const SelectorLayer& layer) const {
        std::vector<int64_t> all = counted_tokens(layer);
        if (layer.prompt > 0 || layer.counted.empty()) {
            const int64_t length = prompt_length(layer, 0);
            all = sequence_tokens(layer.problem, 0, {length / 2, length});
        }
        const int64_t n = std::min(sample_, std::ssize(all));
        std::vector<int64_t> some;
        for (int64_t i = 1; i <= n; ++i)
            some.push_back(all[static_cast<size_t>(std::ssize(all) * i / n - 1)]);
        return some;
    }

    /// Sets best_ of every rule from the mass that each pattern keeps on the sample.
    void search(const SelectorLayer& layer) {
        best_.clear();
        for (const SelectionRule& rule : layer.all_rules())
            best_[rule].assign(static_cast<size_t>(layer.problem.kv_heads), 0);
        const std::vector<int64_t> tokens = sample(layer);
        if (tokens.empty()) return;
        const Problem some = layer.problem.with_query_rows(tokens);
        const SelectorChunk chunk(layer, some, tokens, layer.read_q(tokens));
        for (const SelectionRule& rule : layer.all_rules()) {
            std::vector<size_t>& best = best_[rule];
            std::vector<double> most(best.size(), -1);
            for (size_t at = 0; at < kPatterns.size(); ++at) {
                const std::vector<double> kept = mass_kept(layer, chunk, rule, at);
                for (size_t r = 0; r < best.size(); ++r)
                    if (kept[r] > most[r]) {
                        most[r] = kept[r];
                        best[r] = at;
                    }
            }
        }
    }

    /// [Hkv]: mass that a pattern keeps on the sample.
    std::vector<double> mass_kept(const SelectorLayer& layer, const SelectorChunk& chunk,
                                  const SelectionRule& rule, size_t pattern) const {
        const Tensor<int32_t, 3> there =
            patterns_[pattern]->select(layer, chunk, rule_of(layer, rule, pattern));
        const Tensor<int32_t, 3> ids = layer.backend.download(there.view());
        const View<const float, 3> mass = chunk.mass().host();
        std::vector<double> kept(static_cast<size_t>(ids.extent(1)), 0.0);
        for (int64_t i = 0; i < ids.extent(0); ++i)
            for (int64_t r = 0; r < ids.extent(1); ++r)
                for (int32_t b : selected(ids, i, r))
                    kept[static_cast<size_t>(r)] += double{mass(i, r, b)};
        return kept;
    }

    int64_t sample_ = 64;
    std::array<std::unique_ptr<Selector>, kPatterns.size()> patterns_;
    PerRule<std::vector<size_t>> best_;  // [Hkv] of kPatterns
};

}  // namespace

std::unique_ptr<Selector> make_minference_selector() {
    return std::make_unique<MInferenceSelector>();
}

}  // namespace msa
