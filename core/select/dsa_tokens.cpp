// SPDX-License-Identifier: MIT
#include "core/select/lightning.h"
#include "core/select/token_selector.h"

namespace msa {
namespace {

class DsaTokensSelector final : public LightningPolicy<TokenSelector> {
public:
    std::string_view name() const override { return "dsa-tokens"; }
    std::string_view rule() const override {
        return "the lightning indexer: the tokens of highest sum over index heads of w * "
               "ReLU(index_q . index_k), w learned for each head and query, one choice for all "
               "groups (DeepSeek-V3.2-Exp)";
    }
    std::vector<KeptTokens> select(const SelectorLayer& layer, const SelectorChunk& chunk,
                                   std::span<const int64_t> budgets) const override {
        std::vector<KeptTokens> kept(budgets.size(),
                                     KeptTokens(static_cast<size_t>(chunk.problem.queries())));
        const LightningOperands operands = reader_.operands(layer, chunk);
        for_each_lightning_row(
            layer.backend, chunk.problem, operands, [&](int64_t i, View<const float, 1> scores) {
                for (size_t n = 0; n < budgets.size(); ++n)
                    kept[n][static_cast<size_t>(i)] = highest(scores, budgets[n]);
            });
        return kept;
    }
};

}  // namespace

std::unique_ptr<TokenSelector> make_dsa_tokens_selector() {
    return std::make_unique<DsaTokensSelector>();
}

}  // namespace msa
