// SPDX-License-Identifier: MIT
// Configs of msa-compare that keep single tokens: for every query as many as block policies read on
// average, which see their own block in part. They are not choices of blocks (measure.h): they have
// no block ids, no oracle of their budget, and attend to tokens. Chunks, dense attention, checks
// and sums are those of the common loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/select/token_selector.h"
#include "experiments/compare/plan.h"
#include "experiments/compare/token_attention.h"
#include "experiments/measure/measure.h"

namespace msa::experiments::compare {

class TokenConfigs {
public:
    explicit TokenConfigs(measure::Tally& tally) : tally_(tally) {}

    /// `tokens`: how many a query keeps.
    void add(const Config& config, int64_t tokens);
    int64_t count() const { return std::ssize(configs_); }

    /// Called before the chunks of a view of the layer at a block size.
    void begin(const SelectorLayer&);
    /// Selects for a chunk, attends, and adds up.
    void measure(const measure::MeasuredChunk&);

private:
    struct Kept {  // of one config
        Config config;
        int64_t tokens;
        std::shared_ptr<TokenSelector> selector;  // of all configs of its name at the block size
    };
    double& seconds(const Kept& of, double measure::Tally::Seconds::*what) {
        return tally_.seconds[of.config.selector].*what;
    }
    std::vector<KeptTokens> choose(const measure::MeasuredChunk&, const std::vector<Kept*>& of);
    void add(const measure::MeasuredChunk&, const Kept&, const KeptTokens&, const TokenAttention&);

    measure::Tally& tally_;
    std::vector<Kept> configs_ = {};
};

}  // namespace msa::experiments::compare
