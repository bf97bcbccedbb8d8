// SPDX-License-Identifier: MIT
// Configs of msa-compare that keep single tokens: for every query as many as block policies read on
// average, which see their own block in part. They are not choices of blocks (measure.h): they have
// no block ids, no oracle of their budget, and attend to tokens. Chunks, dense attention, checks
// and sums are those of the common loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/select/token_selector.h"
#include "experiments/compare/plan.h"
#include "experiments/measure/measure.h"

namespace msa::experiments::compare {

// Attention over single tokens, computed from dense attention: its lse gives the probability of
// each kept token, and their sum is the normaliser of attention over them.

/// On the host.
struct DenseAttention {
    View<const float, 3> q;      // [Nq, Hq, dh]
    View<const float, 3> k;      // [Nk, Hkv, dh]
    View<const float, 3> v;      // [Nk, Hkv, dh]
    View<const float, 2> lse;    // [Nq, Hq] of dense attention
    View<const float, 1> sinks;  // [Hq]; absent: none
};

struct TokenAttention {
    Tensor<float, 3> out;    // [Nq, Hq, dh]; 0 where nothing is kept
    Tensor<double, 2> mass;  // [Nq, Hkv] share of dense attention, mean over the group's heads
};

/// Attention over each of the choices, on the host. A kept token has the weight e^(Problem::logit(q
/// . k) - lse), with dense attention's scale and soft cap; a row's weights, including the sink's,
/// are divided by their sum. A token that several choices keep is computed once, and so is the sum
/// of values over tokens that the same choices keep. The result does not depend on the threads. The
/// other choices change it only by the rounding of another order of sums. Speed against
/// attend_tokens_there on the cpu backend, one thread of a Xeon with AVX2 (256 queries over 2K
/// keys, 8 heads of 64, to 64 queries over 32K keys, 64 heads of 128): 36 choices of 128, 256 and
/// 512 tokens are 2.8 to 3.7 times as fast, a single choice 2.1 to 3.1 times.
std::vector<TokenAttention> attend_tokens(const Problem&, const DenseAttention&,
                                          const std::vector<KeptTokens>& choices, int threads);

/// The same for one choice on the backend, as attention over blocks of one token. `in` is in the
/// backend's space; `lse` [Nq, Hq] of dense attention and `sinks` [Hq], which may be absent, are on
/// the host. The mass is e^(lse of the kept - lse) minus that of a sink.
TokenAttention attend_tokens_there(Backend&, const Problem&, const AttentionInput& in,
                                   View<const float, 2> lse, View<const float, 1> sinks,
                                   const KeptTokens& kept);

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
    struct TokenConfig {  // of one config
        Config config;
        int64_t tokens;
        std::shared_ptr<TokenSelector> selector;  // of all configs of its name at the block size
    };
    double& seconds(const TokenConfig& of, double measure::Tally::Seconds::*what) {
        return tally_.seconds[of.config.selector].*what;
    }
    std::vector<KeptTokens> choose(const measure::MeasuredChunk&,
                                   const std::vector<TokenConfig*>& of);
    void add(const measure::MeasuredChunk&, const TokenConfig&, const KeptTokens&,
             const TokenAttention&);

    measure::Tally& tally_;
    std::vector<TokenConfig> configs_ = {};
};

}  // namespace msa::experiments::compare
