// SPDX-License-Identifier: MIT
#include "core/select/best_blocks.h"
#include "core/select/cost.h"
#include "core/select/gate_scores.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class SeerAttentionSelector final : public Selector {
public:
    std::string_view name() const override { return "seerattention"; }
    std::vector<std::string_view> other_names() const override { return {"seerattention-r"}; }
    std::string_view rule() const override {
        return "a learned gate: softmax over the blocks before the query's own of gate_q . gate_k, "
               "gate_q made of the group's queries, gate_k of the largest, the least and the mean "
               "key of the block (SeerAttention-R, arXiv 2506.08889)";
    }
    std::string_view note() const override {
        return "the operands are the layer's gate_q and gate_k, which are for one block size; to "
               "make them is not in the cost";
    }
    std::vector<PolicyOption> options() override {
        return {{"threshold",
                 "keep the blocks of a larger probability, whatever the budget; 0: as many as the "
                 "budget allows",
                 &threshold_, 0, 1}};
    }
    Family family() const override { return Family::index_branch; }
    Needs needs() const override { return {.gate = true, .rule = threshold_ > 0}; }
    PolicyCost do_cost(const Phase& phase) const override {
        return gate_cost(phase.problem, phase.learned);
    }

    void prepare(const SelectorLayer& layer) override {
        gate_ = GateScores(layer, layer.read_learned(LearnedOperand::gate_k, {}));
    }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        Tensor<float, 3> scores = gate_.score(
            layer.backend, chunk.problem, layer.read_learned(LearnedOperand::gate_q, chunk.tokens));
        if (threshold_ > 0)
            for (int64_t n = 0; n < scores.size(); ++n)
                if (!(double{scores.data()[n]} > threshold_)) scores.data()[n] = kLeftOut;
        return {layer.backend, std::move(scores)};
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        if (threshold_ > 0) asked.top_k = kUneven;
        return asked;
    }

private:
    double threshold_ = 0;
    GateScores gate_;
};

}  // namespace

std::unique_ptr<Selector> make_seerattention_selector() {
    return std::make_unique<SeerAttentionSelector>();
}

}  // namespace msa
