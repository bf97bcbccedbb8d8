// SPDX-License-Identifier: MIT
#include "core/select/attention_rows.h"
#include "core/select/eviction.h"

namespace msa {
namespace {

class H2oSelector final : public EvictingSelector {
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
    Needs needs() const override {
        return {.queries = true, .in_order = true, .rule = true, .phases = phase_};
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        return force(asked, 0, asked.top_k / 2);
    }

protected:
    Tensor<float, 2> begin(const SelectorLayer& layer, int64_t sequence) const override {
        return prompt_mass(layer, sequence);
    }
    float receive(float before, float share) const override { return before + share; }

private:
    Phases phase_;
};

}  // namespace

std::unique_ptr<Selector> make_h2o_selector() {
    return std::make_unique<H2oSelector>(Phases::decode);
}

std::unique_ptr<Selector> make_h2o_streamed_selector() {
    return std::make_unique<H2oSelector>(Phases::prefill);
}

}  // namespace msa
