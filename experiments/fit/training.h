// SPDX-License-Identifier: MIT
// The training loop of one indexer (sec:method-training): AdamW on the KL loss over sampled
// queries, on the full support during warm-up, then on the selected one.
//
// Several workers share a step: its queries, dealt out in turn, since later ones see more keys; and
// what index keys are made of, of which each makes a part, and that part's gradient of the weights.
// Sums over workers go in their order, in host memory, where weights and gradients are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/backend.h"
#include "core/indexer/index_branch.h"
#include "core/parallel/group.h"
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
    IndexWeights best;  // of the best evaluation: what a fit comes to
    int64_t best_step = 0;

    /// The weights as they are, evaluated.
    void add(const Evaluation&);
};

/// Nothing learned yet.
FitState start_state(IndexWeights weights);

/// InputError unless every worker has a query of a step; `train`: queries to draw from.
void check_workers(const FitOptions&, int workers, int64_t train);

/// As one of `workers` has it.
class Trainer {
public:
    Trainer(const FitOptions&, const TrainingLayer&, const LayerOperands&, const Indexer&,
            std::span<const int64_t> tokens, int threads, const parallel::Group& workers);

    /// Collective: all go on with the first one's steps, weights and moments.
    void follow_first(FitState&) const;
    /// Collective: one step. False, and no change, when the loss is not finite. SystemError where
    /// workers come to different weights.
    bool advance(FitState&) const;

private:
    /// Of a step's queries, this worker's.
    std::vector<int64_t> share(const std::vector<int64_t>& rows) const;
    /// The rows of TrainingLayer::key_input whose index keys a worker makes.
    QueryRange keys_of(int worker) const;
    std::span<const int64_t> positions(QueryRange keys) const;
    /// All index keys.
    Tensor<float, 3> keys(const IndexWeights&) const;
    /// Of all workers, `part` of whose queries is this one's, from that of its mean loss.
    IndexWeights gradient(const IndexWeights&, const QueryOperands&, IndexGradient,
                          double part) const;

    const FitOptions& o_;
    const TrainingLayer& data_;
    const LayerOperands& layer_;
    const Indexer& indexer_;
    std::span<const int64_t> tokens_;  // the training queries
    int threads_;
    const parallel::Group& workers_;
};

}  // namespace msa::experiments::fit
