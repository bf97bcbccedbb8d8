// SPDX-License-Identifier: MIT
// Quest proposes, and attention by keys of few bits disposes: P_b over its candidates alone.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/select/attention_rows.h"
#include "core/select/best_blocks.h"
#include "core/select/cost.h"
#include "core/select/covering.h"
#include "core/select/per_rule.h"
#include "core/select/quantised.h"
#include "core/select/rows_held.h"
#include "core/select/selector.h"

namespace msa {
namespace {

constexpr float kNoCandidate = -1;

class TwilightSelector final : public Selector {
public:
    std::string_view name() const override { return "twilight"; }
    std::string_view rule() const override {
        return "of a quarter of the blocks, quest's best, the fewest that cover a share p of the "
               "attention to them by keys of 4 bits, mean over the group's heads; p of each group "
               "so that the queries that averages count keep the budget on average (Twilight, "
               "arXiv 2502.02770)";
    }
    std::string_view note() const override {
        return "a budget in place of the source's p = 0.85, which the option p brings back; the "
               "source prunes single tokens of each head; p is fitted to all sequences together";
    }
    std::vector<PolicyOption> options() override {
        return {
            {"candidates", "share of the visible blocks that quest proposes, at least k of them",
             &candidates_, 0, 1},
            {"bits", "of a key; 16: as it is", &bits_, 1, kUnquantised},
            {"p", "share to cover, whatever the budget; 0: as much as the budget allows", &p_, 0,
             1}};
    }
    Family family() const override { return Family::keys; }
    Needs needs() const override { return {.queries = true, .rule = true}; }
    PolicyCost do_cost(const Phase& phase) const override {
        const PolicyCost coarse = coarse_->cost(phase),
                         fine = per_head(
                             phase.problem, over_queries(phase.problem, [&](int64_t keys) {
                                 return std::min(keys, phase.problem.block_size *
                                                           proposed(visible_blocks(
                                                               keys, phase.problem.block_size)));
                             }));
        return {coarse.flops + fine.flops,
                coarse.bytes + fine.bytes * static_cast<double>(bits_) / 16};
    }

    void prepare(const SelectorLayer& layer) override {
        const Problem& p = layer.problem;
        coarse_->prepare(layer);
        const View<const float, 3> k = layer.k.host();
        Tensor<float, 3> keys(k.shape());
        std::copy_n(k.data(), k.size(), keys.data());
        for (int64_t at = 0; at < keys.size(); at += p.head_dim)
            quantise({keys.data() + at, static_cast<size_t>(p.head_dim)}, bits_);
        keys_ = p.keys() > 0 ? Mirror<3>(layer.backend, std::move(keys)) : Mirror<3>();
        share_.clear();
        for (const SelectionRule& rule : layer.all_rules())
            share_[rule].assign(static_cast<size_t>(p.kv_heads), p_);
        if (p_ == 0) find_shares(layer);
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange>& visible = visible_keys(p);
        const Mirror<3> proposals = coarse_->score(layer, chunk), mass = estimate(layer, chunk);
        const View<const float, 3> coarse = proposals.host(), fine = mass.host();
        const std::vector<double>& share = share_[layer.rule];
        Tensor<float, 3> scores(fine.shape());
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i) {
            const int64_t blocks =
                visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size);
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                const Tensor<float, 1> row =
                    over_candidates(layer.rule, blocks, coarse[i][r], fine[i][r]);
                const View<float, 1> to = scores.view()[i][r];
                keep_covering(layer.rule, share[static_cast<size_t>(r)], row.view(), blocks, to);
                for (int64_t b = 0; b < blocks; ++b)
                    if (row(b) == kNoCandidate) to(b) = kLeftOut;
            }
        }
        return {layer.backend, std::move(scores)};
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        asked.top_k = kUneven;
        return asked;
    }

private:
    int64_t proposed(int64_t blocks) const {
        return static_cast<int64_t>(std::ceil(candidates_ * static_cast<double>(blocks)));
    }

    /// P_b [Nq, Hkv, B] by the keys of few bits.
    Mirror<3> estimate(const SelectorLayer& layer, const SelectorChunk& chunk) const {
        const Problem& p = chunk.problem;
        auto mass = layer.backend.make<float, 3>({p.queries(), p.kv_heads, p.blocks()});
        if (keys_)
            layer.backend.block_mass(p, {chunk.q.floats(), keys_.floats(), layer.sinks},
                                     {mass, {}});
        layer.backend.finish();
        return {layer.backend, std::move(mass)};
    }

    /// [blocks]: the share of each candidate among the candidates; kNoCandidate elsewhere. Forced
    /// blocks are candidates.
    Tensor<float, 1> over_candidates(const SelectionRule& rule, int64_t blocks,
                                     View<const float, 1> coarse, View<const float, 1> mass) const {
        SelectionRule candidates = rule;
        candidates.top_k = std::max(rule.top_k, proposed(blocks));
        Tensor<float, 1> shares({blocks});
        std::copy_n(mass.data(), blocks, shares.data());
        for (int64_t b : beyond_budget(candidates, blocks, coarse)) shares(b) = kNoCandidate;
        double all = 0;
        for (int64_t b = 0; b < blocks; ++b)
            if (shares(b) != kNoCandidate) all += double{shares(b)};
        for (int64_t b = 0; b < blocks; ++b)
            if (shares(b) != kNoCandidate)
                shares(b) = all > 0 ? static_cast<float>(double{shares(b)} / all) : 0;
        return shares;
    }

    /// Sets the shares of all rules by the queries that averages count.
    void find_shares(const SelectorLayer& layer) {
        const Problem& p = layer.problem;
        const std::vector<int64_t> tokens = counted_tokens(layer);
        std::vector<CoverBudget> budgets;
        for (const SelectionRule& rule : layer.all_rules()) budgets.emplace_back(rule, p.kv_heads);
        const int64_t step = rows_held(p.query_heads * (p.head_dim + p.blocks()));
        for (int64_t first = 0; first < std::ssize(tokens); first += step) {
            const std::span<const int64_t> some = std::span(tokens).subspan(
                static_cast<size_t>(first),
                static_cast<size_t>(std::min(step, std::ssize(tokens) - first)));
            const Problem queries = p.with_query_rows(some);
            const SelectorChunk chunk(layer, queries, some, layer.read_q(some));
            const Mirror<3> proposals = coarse_->score(layer, chunk), mass = estimate(layer, chunk);
            const View<const float, 3> coarse = proposals.host(), fine = mass.host();
#pragma omp parallel for num_threads(layer.backend.host_threads())
            for (int64_t r = 0; r < p.kv_heads; ++r)
                for (int64_t i = 0; i < queries.queries(); ++i) {
                    const int64_t blocks = visible_blocks(
                        position_of(p, some[static_cast<size_t>(i)]) + 1, p.block_size);
                    for (CoverBudget& budget : budgets)
                        add(budget, r, blocks, coarse[i][r], fine[i][r]);
                }
        }
        for (const CoverBudget& budget : budgets) share_[budget.rule()] = budget.largest_shares();
    }

    void add(CoverBudget& budget, int64_t group, int64_t blocks, View<const float, 1> coarse,
             View<const float, 1> mass) const {
        Tensor<float, 1> row = over_candidates(budget.rule(), blocks, coarse, mass);
        for (int64_t b = 0; b < blocks; ++b) row(b) = std::max(row(b), 0.0F);
        budget.add(group, std::as_const(row).view(), blocks);
    }

    double candidates_ = 0.25, p_ = 0;
    int64_t bits_ = 4;
    std::unique_ptr<Selector> coarse_ = make_selector("quest");
    Mirror<3> keys_;                      // [Nk, Hkv, dh] of few bits
    PerRule<std::vector<double>> share_;  // [Hkv] p
};

}  // namespace

std::unique_ptr<Selector> make_twilight_selector() { return std::make_unique<TwilightSelector>(); }

}  // namespace msa
