// SPDX-License-Identifier: MIT
// A config of msa-compare that keeps single tokens: for every query as many as policies of blocks
// read on average, whose own block is seen in part.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/select/token_selector.h"
#include "experiments/compare/accumulator.h"
#include "experiments/compare/token_attention.h"

namespace msa::experiments::compare {

class TokenAccumulator {
public:
    /// `tokens`: how many a query keeps.
    TokenAccumulator(Config config, int64_t tokens, LayerSums& sums);

    /// The choice for a chunk of queries, and what attention over it gave.
    void add(const MeasuredChunk&, const KeptTokens&, const TokenAttention&);
    ConfigAbout& about() { return about_; }
    const Config& config() const { return about_.config; }
    int64_t tokens() const { return tokens_; }
    TokenSelector& selector() { return *selector_; }

private:
    ConfigAbout about_;
    int64_t tokens_;
    std::unique_ptr<TokenSelector> selector_;
    LayerSums& sums_;
};

}  // namespace msa::experiments::compare
