// SPDX-License-Identifier: MIT
#include "core/select/cost.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class IndexSelector final : public Selector {
public:
    std::string_view name() const override { return "index"; }
    std::string_view rule() const override {
        return "the Index Branch: maximum over the block of index_q . index_k / sqrt(didx) "
               "(eq:msa-index-score)";
    }
    Family family() const override { return Family::index_branch; }
    Needs needs() const override { return {.index = true}; }
    PolicyCost do_cost(const Phase& phase) const override {
        return index_branch_cost(phase.problem);
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        auto scores = layer.backend.make<float, 3>({p.queries(), p.kv_heads, p.blocks()});
        layer.backend.index_scores(p, {chunk.index_q.operand(), layer.index_k.operand()}, scores);
        return {layer.backend, std::move(scores)};
    }
    Tensor<int32_t, 3> select(const SelectorLayer& layer, const SelectorChunk& chunk,
                              const SelectionRule& rule) override {
        const Problem& p = chunk.problem;
        auto ids = layer.backend.make<int32_t, 3>({p.queries(), p.kv_heads, rule.top_k});
        layer.backend.index_select(p, rule, {chunk.index_q.operand(), layer.index_k.operand()},
                                   ids);
        return ids;
    }
};

}  // namespace

std::unique_ptr<Selector> make_index_selector() { return std::make_unique<IndexSelector>(); }

}  // namespace msa
