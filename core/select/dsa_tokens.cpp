// SPDX-License-Identifier: MIT
#include <algorithm>
#include <numeric>
#include <optional>

#include "core/select/dsa.h"
#include "core/select/token_selector.h"

namespace msa {
namespace {

class DsaTokensSelector final : public TokenSelector {
public:
    std::string_view name() const override { return "dsa-tokens"; }
    std::string_view rule() const override {
        return "the lightning indexer: the tokens of highest sum over index heads of ReLU(index_q "
               ". index_k), one choice for all groups (DeepSeek-V3.2-Exp)";
    }
    Selector::Needs needs() const override { return {.index = true}; }
    void prepare(const SelectorLayer& layer) override { keys_.emplace(layer); }
    std::vector<int64_t> select(const SelectorChunk& chunk, int64_t row, int64_t sequence,
                                int64_t visible, int64_t budget) const override {
        const std::vector<float> scores =
            keys_->scores(chunk.index_q.as<const float>()[row], sequence, visible);
        std::vector<int64_t> tokens(static_cast<size_t>(visible));
        std::iota(tokens.begin(), tokens.end(), 0);
        if (visible > budget) {
            const auto score = [&](int64_t j) { return scores[static_cast<size_t>(j)]; };
            std::nth_element(tokens.begin(), tokens.begin() + budget, tokens.end(),
                             [&](int64_t a, int64_t b) {
                                 return score(a) != score(b) ? score(a) > score(b) : a < b;
                             });
            tokens.resize(static_cast<size_t>(budget));
            std::sort(tokens.begin(), tokens.end());
        }
        return tokens;
    }

private:
    std::optional<LightningKeys> keys_;
};

}  // namespace

std::unique_ptr<TokenSelector> make_dsa_tokens_selector() {
    return std::make_unique<DsaTokensSelector>();
}

}  // namespace msa
