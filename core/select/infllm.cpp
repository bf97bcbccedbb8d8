// SPDX-License-Identifier: MIT
#include <algorithm>
#include <numeric>
#include <optional>

#include "core/select/attention_rows.h"
#include "core/select/block_vectors.h"
#include "core/select/cost.h"
#include "core/select/per_rule.h"
#include "core/select/selector.h"

namespace msa {
namespace {

// The source's 128 first, 4096 newest and 2048 chosen tokens, in blocks of 128.
constexpr int64_t kFirst = 1, kNewest = 32, kAll = 49;

class InfLlmSelector final : public Selector {
public:
    std::string_view name() const override { return "infllm"; }
    std::string_view rule() const override {
        return "q . mean of the block's 4 keys that received most attention while they were in the "
               "local window, summed over the group's heads; the first block and the newest "
               "forced, 33 of 49 blocks (InfLLM, arXiv 2402.04617)";
    }
    std::string_view note() const override {
        return "keys after RoPE, and attention normalised over all keys; the source's over the "
               "local window and the blocks that it has fetched";
    }
    std::vector<PolicyOption> options() override {
        return {{"representatives", "keys that stand for a block", &representatives_, 1,
                 kMaxBlockSize}};
    }
    Family family() const override { return Family::keys; }
    Needs needs() const override { return {.queries = true, .rule = true}; }
    PolicyCost do_cost(const Phase& phase) const override {
        return per_group(phase.problem, blocks_seen(phase.problem));
    }

    void prepare(const SelectorLayer& layer) override {
        const Problem& p = layer.problem;
        const std::span<const SelectionRule> rules = layer.all_rules();
        const std::vector<int64_t> starts = block_starts(p);
        Tensor<float, 4> vectors({std::ssize(rules), p.kv_heads, starts.back(), p.head_dim});
        for (int64_t s = 0; s < p.sequences(); ++s) {
            const Tensor<float, 3> received = attention_received(layer, s);
            const int64_t first = starts[static_cast<size_t>(s)];
            for (int64_t n = 0; n < std::ssize(rules); ++n)
                for (int64_t r = 0; r < p.kv_heads; ++r)
                    for (int64_t b = 0; b < starts[static_cast<size_t>(s) + 1] - first; ++b)
                        represent(layer, s, r, b, received.view()[n][r],
                                  vectors.view()[n][r][first + b]);
        }
        vectors_.clear();
        for (int64_t n = 0; n < std::ssize(rules); ++n)
            vectors_[rules[static_cast<size_t>(n)]].emplace(layer, vectors.view()[n]);
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const Tensor<float, 3> queries =
            group_vectors(layer, p, chunk.q.host(), p.head_dim, add_query);
        return {layer.backend, vectors_[layer.rule]->score(layer.backend, p, queries)};
    }

    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        return force_share(asked, kFirst, kNewest, kAll);
    }

private:
    /// Tokens of the local window before the query's own block: a block that is left behind has
    /// been seen by no query after this one.
    int64_t window(const SelectorLayer& layer, const SelectionRule& rule) const {
        return std::max<int64_t>(
            1, (adjust(rule, layer.prompt).forced_local - 1) * layer.problem.block_size);
    }

    /// [rules, Hkv, tokens]: attention that each key of a sequence received from the queries whose
    /// local window it was in, for the window of each rule.
    Tensor<float, 3> attention_received(const SelectorLayer& layer, int64_t sequence) const {
        const Problem& p = layer.problem;
        const std::span<const SelectionRule> rules = layer.all_rules();
        const int64_t length = sequence_length(p, sequence);
        Tensor<float, 3> received({std::ssize(rules), p.kv_heads, length});
        const auto add = [&](int64_t first, View<const float, 3> mass) {
            for (size_t at = 0; at < rules.size(); ++at) {
                const int64_t reach = window(layer, rules[at]);
                for (int64_t n = 0; n < mass.extent(0); ++n)
                    add_window(mass[n], first + n + 1, reach,
                               received.view()[static_cast<int64_t>(at)]);
            }
        };
        for_each_mass(layer, sequence_tokens(p, sequence, {0, length}), 1, add);
        return received;
    }

    /// `received` [Hkv, tokens] takes in one query's attention [Hkv, tokens] to the `reach` newest
    /// of the `end` keys that it sees.
    static void add_window(View<const float, 2> mass, int64_t end, int64_t reach,
                           View<float, 2> received) {
        for (int64_t r = 0; r < received.extent(0); ++r)
            for (int64_t j = std::max<int64_t>(0, end - reach); j < end; ++j)
                received(r, j) += mass(r, j);
    }

    /// Mean key of a block's representatives.
    void represent(const SelectorLayer& layer, int64_t sequence, int64_t group, int64_t block,
                   View<const float, 1> received, View<float, 1> mean) const {
        const Problem& p = layer.problem;
        const int64_t begin = block * p.block_size;
        std::vector<int64_t> tokens(
            static_cast<size_t>(std::min(p.block_size, received.size() - begin)));
        std::iota(tokens.begin(), tokens.end(), begin);
        const auto count = std::min(representatives_, std::ssize(tokens));
        std::partial_sort(tokens.begin(), tokens.begin() + count, tokens.end(),
                          [&](int64_t a, int64_t b) {
                              return received(a) != received(b) ? received(a) > received(b) : a < b;
                          });
        const View<const float, 3> k = layer.k.host();
        const int64_t start = sequence_start(p, sequence);
        for (int64_t n = 0; n < count; ++n)
            for (int64_t d = 0; d < mean.size(); ++d)
                mean(d) +=
                    k(start + tokens[static_cast<size_t>(n)], group, d) / static_cast<float>(count);
    }

    int64_t representatives_ = 4;
    PerRule<std::optional<VectorScores>> vectors_;
};

}  // namespace

std::unique_ptr<Selector> make_infllm_selector() { return std::make_unique<InfLlmSelector>(); }

}  // namespace msa
