// SPDX-License-Identifier: MIT
// A config of msa-compare that keeps single tokens: for every query as many as policies of blocks
// read on average, whose own block is seen in part.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/select/token_selector.h"
#include "experiments/compare/accumulator.h"
#include "experiments/compare/checks.h"
#include "experiments/compare/token_attention.h"

namespace msa::experiments::compare {

class TokenAccumulator {
public:
    /// `layer`: sizes of the whole layer; `blocks`: of its queries. `tokens`: how many a query
    /// keeps.
    TokenAccumulator(Config config, int64_t tokens, const Problem& layer,
                     const analysis::QueryBlocks& blocks, size_t views);

    /// The choice for a chunk of queries, and what attention over it gave.
    void add(const MeasuredChunk&, const KeptTokens&, const TokenAttention&, SelfChecks& checks);
    Reading& reading() { return reading_; }
    const Config& config() const { return reading_.config(); }
    int64_t tokens() const { return tokens_; }
    TokenSelector& selector() { return *selector_; }
    const analysis::BlockSums& sums() const { return sums_; }

    /// Groups /metrics and /blocks of the config: as an Accumulator's, without recalls; blocks_kept
    /// are the blocks that the tokens touch.
    void write(io::UnitWriter& to, const std::string& layer, const Problem& p) const;

private:
    Reading reading_;
    int64_t tokens_;
    std::unique_ptr<TokenSelector> selector_;
    analysis::OutputError output_error_;
    std::vector<analysis::Mean> mass_;  // [Hkv]
    const analysis::QueryBlocks& blocks_;
    analysis::BlockSums sums_;
};

}  // namespace msa::experiments::compare
