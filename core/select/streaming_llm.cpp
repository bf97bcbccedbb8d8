// SPDX-License-Identifier: MIT
#include <algorithm>
#include <numeric>

#include "core/select/token_selector.h"

namespace msa {
namespace {

class StreamingLlmSelector final : public TokenSelector {
public:
    std::string_view name() const override { return "streaming-llm"; }
    std::string_view rule() const override {
        return "the first 4 tokens and the newest ones (StreamingLLM, arXiv 2309.17453)";
    }
    std::vector<PolicyOption> options() override {
        return {{"sinks", "first tokens kept", &sinks_, 0, 65536}};
    }
    Family family() const override { return Family::position; }
    PolicyCost do_cost(const Phase&) const override { return {}; }
    std::vector<KeptTokens> select(const SelectorLayer&, const SelectorChunk& chunk,
                                   std::span<const int64_t> budgets) const override {
        std::vector<KeptTokens> kept(budgets.size());
        for (size_t n = 0; n < budgets.size(); ++n)
            for (const KeyRange& seen : visible_keys(chunk.problem)) {
                std::vector<int64_t> tokens(static_cast<size_t>(std::min(seen.count, budgets[n])));
                std::iota(tokens.begin(), tokens.end(), seen.count - std::ssize(tokens));
                if (budgets[n] > sinks_)
                    std::iota(tokens.begin(), tokens.begin() + std::min(sinks_, std::ssize(tokens)),
                              0);
                kept[n].push_back(std::move(tokens));
            }
        return kept;
    }

private:
    int64_t sinks_ = 4;
};

}  // namespace

std::unique_ptr<TokenSelector> make_streaming_llm_selector() {
    return std::make_unique<StreamingLlmSelector>();
}

}  // namespace msa
