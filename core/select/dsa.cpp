// SPDX-License-Identifier: MIT
#include <optional>
#include <utility>

#include "core/select/index_pieces.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class DsaSelector final : public LightningPolicy<Selector> {
public:
    std::string_view name() const override { return "dsa"; }
    std::string_view rule() const override {
        return "the lightning indexer: largest over the block's tokens of the sum over index heads "
               "of w * ReLU(index_q . index_k), w learned for each head and query, one choice for "
               "all groups (DeepSeek-V3.2-Exp)";
    }
    std::vector<PolicyOption> options() override {
        return {{"compress",
                 "neighbouring index keys that are scored as one, by their mean; DeepSeek-V4: 4, "
                 "with learned weights",
                 &compress_, 1, 1024}};
    }
    /// Every key, or every mean of keys, is scored once.
    PolicyCost do_cost(const Phase& phase) const override {
        const PolicyCost cost = LightningPolicy::do_cost(phase);
        return compress_ == 1 ? cost
                              : cost_of_scored(cost, phase.problem,
                                               IndexPieces::seen(phase.problem, compress_));
    }

    void prepare(const SelectorLayer& layer) override {
        LightningPolicy::prepare(layer);
        if (compress_ > 1) pieces_.emplace(layer, reader_.keys(layer), compress_);
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        LightningOperands operands = reader_.operands(layer, chunk);
        if (!pieces_)
            return {layer.backend, lightning_block_scores(layer.backend, chunk.problem, operands)};
        return {layer.backend,
                pieces_->block_scores(layer.backend, chunk.problem, std::move(operands))};
    }

private:
    int64_t compress_ = 1;
    std::optional<IndexPieces> pieces_;
};

}  // namespace

std::unique_ptr<Selector> make_dsa_selector() { return std::make_unique<DsaSelector>(); }

}  // namespace msa
