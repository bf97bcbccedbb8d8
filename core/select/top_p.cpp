// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/select/attention_rows.h"
#include "core/select/cost.h"
#include "core/select/covering.h"
#include "core/select/per_rule.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class TopPSelector final : public Selector {
public:
    std::string_view name() const override { return "top-p"; }
    std::string_view rule() const override {
        return "the fewest blocks that cover a share p of the Main Branch probability, mean over "
               "the group's heads; p of each group so that the queries that averages count keep "
               "the budget on average: the oracle with an uneven budget (cf. Twilight, arXiv "
               "2502.02770)";
    }
    std::string_view note() const override { return "p is fitted to all sequences together"; }
    std::vector<PolicyOption> options() override {
        return {{"p", "share to cover, whatever the budget; 0: as much as the budget allows", &p_,
                 0, 1}};
    }
    Family family() const override { return Family::oracle; }
    Needs needs() const override { return {.queries = true, .rule = true}; }
    PolicyCost do_cost(const Phase& phase) const override { return oracle_cost(phase.problem); }

    void prepare(const SelectorLayer& layer) override {
        const Problem& p = layer.problem;
        share_.clear();
        for (const SelectionRule& rule : layer.all_rules())
            share_[rule].assign(static_cast<size_t>(p.kv_heads), p_);
        if (p_ > 0) return;
        const std::vector<int64_t> tokens = counted_tokens(layer);
        std::vector<CoverBudget> budgets;
        for (const SelectionRule& rule : layer.all_rules()) budgets.emplace_back(rule, p.kv_heads);
        for_each_mass(layer, tokens, p.block_size, [&](int64_t first, View<const float, 3> mass) {
#pragma omp parallel for num_threads(layer.backend.host_threads())
            for (int64_t r = 0; r < p.kv_heads; ++r)
                for (int64_t n = 0; n < mass.extent(0); ++n) {
                    const int64_t seen = position_of(p, tokens[static_cast<size_t>(first + n)]) + 1;
                    for (CoverBudget& budget : budgets)
                        budget.add(r, mass[n][r], visible_blocks(seen, p.block_size));
                }
        });
        for (const CoverBudget& budget : budgets) share_[budget.rule()] = budget.largest_shares();
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange>& visible = visible_keys(p);
        const View<const float, 3> mass = chunk.mass().host();
        Tensor<float, 3> scores(mass.shape());
        const std::vector<double>& share = share_[layer.rule];
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i)
            for (int64_t r = 0; r < p.kv_heads; ++r)
                keep_covering(layer.rule, share[static_cast<size_t>(r)], mass[i][r],
                              visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size),
                              scores.view()[i][r]);
        return {layer.backend, std::move(scores)};
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        asked.top_k = kUneven;
        return asked;
    }

private:
    double p_ = 0;
    PerRule<std::vector<double>> share_;  // [Hkv] p
};

}  // namespace

std::unique_ptr<Selector> make_top_p_selector() { return std::make_unique<TopPSelector>(); }

}  // namespace msa
