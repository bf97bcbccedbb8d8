// SPDX-License-Identifier: MIT
// An arm of msa-compare that keeps single tokens. Measured from dense attention: with its lse, the
// probability of each kept token is known, and their sum is what attention over them divides by.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "analysis/hardware.h"
#include "analysis/output_error.h"
#include "core/io/results.h"
#include "core/select/token_selector.h"
#include "experiments/compare/checks.h"
#include "experiments/compare/plan.h"

namespace msa::experiments::compare {

class TokenArm {
public:
    /// `layer`: sizes of the whole layer.
    TokenArm(Arm arm, const Problem& layer);

    /// Before the chunks of each view of the layer.
    void prepare(const SelectorLayer&, const analysis::Cost& index_cost);
    /// A chunk of queries: k, v [Nk, Hkv, dh], lse [Nq, Hq] of dense attention, all on the host.
    void add(const SelectorChunk&, const MeasuredChunk&, View<const float, 3> k,
             View<const float, 3> v, View<const float, 2> lse, SelfChecks& checks);
    /// Group /metrics of the arm: as a Tally's, without recalls; blocks_kept are the blocks that
    /// the tokens touch.
    void write(io::ResultsWriter& to, const std::string& layer, const Problem& p) const;

    const Arm& arm() const { return arm_; }

private:
    Arm arm_;
    std::unique_ptr<TokenSelector> selector_;
    analysis::OutputError output_error_;
    std::vector<analysis::Mean> mass_, blocks_;  // [Hkv], [1]
    analysis::Cost index_, attention_;
    int64_t counted_ = 0, queries_ = 0;
};

}  // namespace msa::experiments::compare
