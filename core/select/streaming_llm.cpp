// SPDX-License-Identifier: MIT
#include <algorithm>
#include <numeric>

#include "core/select/token_selector.h"

namespace msa {
namespace {

constexpr int64_t kSinks = 4;

class StreamingLlmSelector final : public TokenSelector {
public:
    std::string_view name() const override { return "streaming-llm"; }
    std::string_view rule() const override {
        return "the first 4 tokens and the newest ones (StreamingLLM, arXiv 2309.17453)";
    }
    std::vector<int64_t> select(const SelectorChunk&, int64_t, int64_t, int64_t visible,
                                int64_t budget) const override {
        std::vector<int64_t> tokens(static_cast<size_t>(std::min(visible, budget)));
        std::iota(tokens.begin(), tokens.end(), visible - std::ssize(tokens));
        if (budget > kSinks)
            std::iota(tokens.begin(), tokens.begin() + std::min(kSinks, std::ssize(tokens)), 0);
        return tokens;
    }
};

}  // namespace

std::unique_ptr<TokenSelector> make_streaming_llm_selector() {
    return std::make_unique<StreamingLlmSelector>();
}

}  // namespace msa
