// SPDX-License-Identifier: MIT
#include <algorithm>
#include <vector>

#include "core/select/best_blocks.h"
#include "core/select/cost.h"
#include "core/select/selector.h"

namespace msa {
namespace {

struct GroupBlock {
    float mass;
    int64_t group, block;
};

/// A query's blocks [Hkv, blocks] by mass; of equal ones the lower group, then the lower block.
bool goes_before(const GroupBlock& a, const GroupBlock& b) {
    if (a.mass != b.mass) return a.mass > b.mass;
    return a.group != b.group ? a.group < b.group : a.block < b.block;
}

/// Writes -inf at those of a query's blocks that are left out of the budget of all its groups, of
/// which `safe` blocks are each group's own.
void leave_out(const SelectionRule& rule, int64_t safe, int64_t blocks, View<float, 2> scores) {
    std::vector<GroupBlock> open;  // beside the forced ones and each group's own
    int64_t room = 0;
    for (int64_t r = 0; r < scores.extent(0); ++r) {
        std::vector<GroupBlock> free;
        for (int64_t b : free_blocks(rule, blocks)) free.push_back({scores(r, b), r, b});
        const int64_t forced = blocks - std::ssize(free);
        const int64_t own = std::clamp<int64_t>(safe - forced, 0, std::ssize(free));
        std::sort(free.begin(), free.end(), goes_before);
        open.insert(open.end(), free.begin() + own, free.end());
        room += std::max<int64_t>(0, std::min(rule.top_k, blocks) - forced - own);
    }
    std::sort(open.begin(), open.end(), goes_before);
    for (auto left = open.begin() + std::min(room, std::ssize(open)); left != open.end(); ++left)
        scores(left->group, left->block) = kLeftOut;
}

class AdaOracleSelector final : public Selector {
public:
    std::string_view name() const override { return "ada-oracle"; }
    std::string_view rule() const override {
        return "P_b, the blocks of highest P_b of all groups together; of every group at least a "
               "fifth of the budget: the oracle with a budget shared by the layer's groups "
               "(Ada-KV, arXiv 2407.11550)";
    }
    std::string_view note() const override {
        return "the source ranks by an observation window's attention (snapkv), this by each "
               "query's own";
    }
    std::vector<PolicyOption> options() override {
        return {{"safeguard", "share of the budget that is each group's own", &safeguard_, 0, 1}};
    }
    Family family() const override { return Family::oracle; }
    Needs needs() const override { return {.rule = true}; }
    PolicyCost do_cost(const Phase& phase) const override { return oracle_cost(phase.problem); }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange>& visible = visible_keys(p);
        const View<const float, 3> mass = chunk.mass().host();
        const auto safe = static_cast<int64_t>(safeguard_ * static_cast<double>(layer.rule.top_k));
        Tensor<float, 3> scores(mass.shape());
        std::copy_n(mass.data(), mass.size(), scores.data());
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i)
            leave_out(layer.rule, safe,
                      visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size),
                      scores.view()[i]);
        return {layer.backend, std::move(scores)};
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        asked.top_k = kUneven;
        return asked;
    }

private:
    double safeguard_ = 0.2;
};

}  // namespace

std::unique_ptr<Selector> make_ada_oracle_selector() {
    return std::make_unique<AdaOracleSelector>();
}

}  // namespace msa
