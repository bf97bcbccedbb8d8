// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/select/lightning.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class DsaSelector final : public LightningPolicy<Selector> {
public:
    std::string_view name() const override { return "dsa"; }
    std::string_view rule() const override {
        return "the lightning indexer: largest over the block's tokens of the sum over index heads "
               "of ReLU(index_q . index_k), one choice for all groups (DeepSeek-V3.2-Exp)";
    }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
        for_each_lightning_row(layer, chunk, [&](int64_t i, View<const float, 1> tokens) {
            const int64_t seen = tokens.size();
            for (int64_t b = 0; b < visible_blocks(seen, p.block_size); ++b) {
                const float* first = tokens.data() + b * p.block_size;
                const float* last = tokens.data() + std::min((b + 1) * p.block_size, seen);
                for (int64_t r = 0; r < p.kv_heads; ++r)
                    scores(i, r, b) = *std::max_element(first, last);
            }
        });
        return {layer.backend, std::move(scores)};
    }
};

}  // namespace

std::unique_ptr<Selector> make_dsa_selector() { return std::make_unique<DsaSelector>(); }

}  // namespace msa
