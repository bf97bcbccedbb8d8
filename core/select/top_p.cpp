// SPDX-License-Identifier: MIT
#include <algorithm>
#include <limits>
#include <numeric>

#include "core/select/attention_rows.h"
#include "core/select/cost.h"
#include "core/select/per_rule.h"
#include "core/select/selector.h"

namespace msa {
namespace {

constexpr int64_t kShares = int64_t{1} << 16;  // p is a multiple of 1 / kShares
constexpr float kLeft = -std::numeric_limits<float>::infinity();

/// A row's blocks in the order in which top-p takes them: forced ones, then by mass.
std::vector<int32_t> order_of(View<const float, 1> mass, int64_t blocks,
                              const SelectionRule& rule) {
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        const bool forced = is_forced(rule, a, blocks), other = is_forced(rule, b, blocks);
        if (forced != other) return forced;
        return mass(a) != mass(b) ? mass(a) > mass(b) : a < b;
    });
    return order;
}

/// Calls visit(block, before) for the blocks of a row in that order; `before`: the share that those
/// before it cover, -1 for a forced block. A block is taken where before < p.
template <typename Visit>
void for_each_taken(View<const float, 1> mass, int64_t blocks, const SelectionRule& rule,
                    Visit visit) {
    double sum = 0;
    for (int32_t b : order_of(mass, blocks, rule)) {
        visit(b, is_forced(rule, b, blocks) ? -1.0 : sum);
        sum += double{mass(b)};
    }
}

/// How many blocks ask for each share of p to be passed before they are taken, at one rule.
struct Asks {
    Asks(const SelectionRule& of, int64_t groups)
        : rule(of), counts({groups, kShares + 1}), room(static_cast<size_t>(groups), 0) {}

    /// The first n queries of `tokens` with their mass [n, Hkv, B].
    void add(const SelectorLayer& layer, std::span<const int64_t> tokens,
             View<const float, 3> mass) {
        const Problem& p = layer.problem;
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t n = 0; n < mass.extent(0); ++n) {
                const int64_t seen = position_of(p, tokens[static_cast<size_t>(n)]) + 1;
                const int64_t blocks = visible_blocks(seen, p.block_size);
                int64_t& left = room[static_cast<size_t>(r)];
                left += std::min(blocks, rule.top_k);
                for_each_taken(mass[n][r], blocks, rule, [&](int32_t, double before) {
                    if (before < 0)
                        --left;
                    else if (before < 1)
                        ++counts(r, static_cast<int64_t>(before * kShares));
                });
            }
    }

    /// [Hkv]: the largest p at which no more blocks are taken than there is room for.
    std::vector<double> largest_shares() const {
        std::vector<double> shares;
        for (int64_t r = 0; r < counts.extent(0); ++r) {
            int64_t share = 0, left = room[static_cast<size_t>(r)];
            while (share < kShares && counts(r, share) <= left) left -= counts(r, share++);
            shares.push_back(static_cast<double>(share) / static_cast<double>(kShares));
        }
        return shares;
    }

    SelectionRule rule;
    Tensor<int64_t, 2> counts;  // [Hkv, kShares + 1]
    std::vector<int64_t> room;  // [Hkv] blocks of the budget that are not forced
};

class TopPSelector final : public Selector {
public:
    std::string_view name() const override { return "top-p"; }
    std::string_view rule() const override {
        return "the fewest blocks that cover a share p of the Main Branch probability, mean over "
               "the group's heads; p of each group so that the queries that averages count keep "
               "the budget on average: the oracle with an uneven budget (cf. Twilight, arXiv "
               "2502.02770)";
    }
    Family family() const override { return Family::oracle; }
    Needs needs() const override { return {.queries = true, .rule = true}; }
    PolicyCost cost(const Problem& phase, int64_t) const override { return oracle_cost(phase); }

    void prepare(const SelectorLayer& layer) override {
        const std::vector<int64_t> tokens = counted_tokens(layer);
        std::vector<Asks> asks;
        for (const SelectionRule& rule : layer.all_rules())
            asks.emplace_back(rule, layer.problem.kv_heads);
        for_each_mass(
            layer, tokens, layer.problem.block_size, [&](int64_t first, View<const float, 3> mass) {
                for (Asks& of_rule : asks)
                    of_rule.add(layer, std::span(tokens).subspan(static_cast<size_t>(first)), mass);
            });
        share_.clear();
        for (const Asks& of_rule : asks) share_[of_rule.rule] = of_rule.largest_shares();
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange>& visible = visible_keys(p);
        const View<const float, 3> mass = chunk.mass().host();
        Tensor<float, 3> scores(mass.shape());
        const std::vector<double>& share = share_[layer.rule];
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i) {
            const int64_t blocks =
                visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size);
            for (int64_t r = 0; r < p.kv_heads; ++r)
                for_each_taken(mass[i][r], blocks, layer.rule, [&](int32_t b, double before) {
                    const bool taken = before < share[static_cast<size_t>(r)];
                    scores(i, r, b) = taken ? mass(i, r, b) : kLeft;
                });
        }
        return {layer.backend, std::move(scores)};
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        asked.top_k = kUneven;
        return asked;
    }

private:
    PerRule<std::vector<double>> share_;  // [Hkv] p
};

}  // namespace

std::unique_ptr<Selector> make_top_p_selector() { return std::make_unique<TopPSelector>(); }

}  // namespace msa
