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
    PolicyCost cost(const Problem&, int64_t) const override { return {}; }
    std::vector<std::vector<int64_t>> select(const SelectorLayer&, const SelectorChunk& chunk,
                                             int64_t budget) const override {
        std::vector<std::vector<int64_t>> kept;
        for (const KeyRange& seen : visible_keys(chunk.problem)) {
            std::vector<int64_t> tokens(static_cast<size_t>(std::min(seen.count, budget)));
            std::iota(tokens.begin(), tokens.end(), seen.count - std::ssize(tokens));
            if (budget > sinks_)
                std::iota(tokens.begin(), tokens.begin() + std::min(sinks_, std::ssize(tokens)), 0);
            kept.push_back(std::move(tokens));
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
