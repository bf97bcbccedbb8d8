// SPDX-License-Identifier: MIT
// The training loop of one indexer (sec:method-training): AdamW on the KL loss over sampled
// queries, on the full support during warm-up, then on the selected one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/backend.h"
#include "core/index_branch.h"
#include "experiments/fit/data.h"
#include "experiments/fit/held_out.h"
#include "experiments/fit/indexer.h"
#include "experiments/fit/operands.h"
#include "experiments/fit/options.h"

namespace msa::experiments::fit {

/// Everything that the next step depends on, and the curves so far.
struct FitState {
    int64_t step = 0;                     // steps done
    IndexWeights weights, first, second;  // and AdamW's moments
    std::vector<double> kl;               // [step] loss of each step
    std::vector<Evaluation> evaluations;
};

/// Nothing learned yet.
FitState start_state(IndexWeights weights);

class Trainer {
public:
    Trainer(const FitOptions&, const TrainingLayer&, const LayerOperands&, const Indexer&,
            std::span<const int64_t> tokens, int threads);

    /// One step. False, and no change, when the loss is not finite.
    bool advance(FitState&) const;

private:
    const FitOptions& o_;
    const TrainingLayer& data_;
    const LayerOperands& layer_;
    const Indexer& indexer_;
    std::span<const int64_t> tokens_;  // the training queries
    int threads_;
};

}  // namespace msa::experiments::fit
