// SPDX-License-Identifier: MIT
#include "core/select/lightning.h"
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
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        return {layer.backend, lightning_block_scores(layer.backend, chunk.problem,
                                                      reader_.operands(layer, chunk))};
    }
};

}  // namespace

std::unique_ptr<Selector> make_dsa_selector() { return std::make_unique<DsaSelector>(); }

}  // namespace msa
