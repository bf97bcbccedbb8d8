// SPDX-License-Identifier: MIT
#include <algorithm>
#include <numeric>

#include "core/select/token_selector.h"

namespace msa {
namespace {

class WindowTokensSelector final : public TokenSelector {
public:
    std::string_view name() const override { return "window-tokens"; }
    std::string_view rule() const override {
        return "the tokens of the first block and a window of tokens that ends at the query (the "
               "sliding-window baseline of app:prelim-swa)";
    }
    Family family() const override { return Family::position; }
    PolicyCost do_cost(const Phase&) const override { return {}; }
    std::vector<KeptTokens> select(const SelectorLayer&, const SelectorChunk& chunk,
                                   std::span<const int64_t> budgets) const override {
        std::vector<KeptTokens> kept(budgets.size());
        for (size_t n = 0; n < budgets.size(); ++n)
            for (const KeyRange& seen : visible_keys(chunk.problem)) {
                const int64_t count = std::min(budgets[n], seen.count);
                const int64_t first =
                    count > chunk.problem.block_size ? chunk.problem.block_size : 0;
                std::vector<int64_t> tokens(static_cast<size_t>(count));
                std::iota(tokens.begin(), tokens.begin() + first, 0);
                std::iota(tokens.begin() + first, tokens.end(), seen.count - (count - first));
                kept[n].push_back(std::move(tokens));
            }
        return kept;
    }
};

}  // namespace

std::unique_ptr<TokenSelector> make_window_tokens_selector() {
    return std::make_unique<WindowTokensSelector>();
}

}  // namespace msa
