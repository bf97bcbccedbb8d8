// SPDX-License-Identifier: MIT
// A config of msa-compare that keeps single tokens: for every query as many as policies of blocks
// read on average, whose own block is seen in part. Measured from dense attention: with its lse,
// the probability of each kept token is known, and their sum is what attention over them divides
// by.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/select/token_selector.h"
#include "experiments/compare/accumulator.h"
#include "experiments/compare/checks.h"

namespace msa::experiments::compare {

class TokenAccumulator {
public:
    /// `layer`: sizes of the whole layer. `tokens`: how many a query keeps.
    TokenAccumulator(Config config, int64_t tokens, const Problem& layer, size_t views);

    /// Before the chunks of each view of the layer.
    void prepare(const SelectorLayer&);
    /// A chunk of queries: v [Nk, Hkv, dh] and sinks [Hq], absent without, on the host.
    void add(const SelectorLayer&, const SelectorChunk&, const MeasuredChunk&,
             View<const float, 3> v, View<const float, 1> sinks, SelfChecks& checks);
    Reading& reading() { return reading_; }
    const Config& config() const { return reading_.config(); }
    const Policy& policy() const { return *selector_; }

    /// Group /metrics of the config: as an Accumulator's, without recalls; blocks_kept are the
    /// blocks that the tokens touch.
    void write(io::ResultsWriter& to, const std::string& layer, const Problem& p) const;

private:
    Reading reading_;
    int64_t tokens_;
    std::unique_ptr<TokenSelector> selector_;
    analysis::OutputError output_error_;
    std::vector<analysis::Mean> mass_;  // [Hkv]
};

}  // namespace msa::experiments::compare
