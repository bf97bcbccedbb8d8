// SPDX-License-Identifier: MIT
// The training loop of one indexer (sec:method-training): AdamW on the KL loss over sampled
// queries, on the full support during warm-up, then on the selected one.
//
// Several workers share a step. Queries are dealt out in turn, since later ones see more keys. Each
// worker computes a part of the index keys, and that part's gradient of the weights. Weights,
// gradients and their sums are in host memory; sums go in worker order.
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

/// Everything on which the next step depends, and the curves so far.
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

/// The state before the first step.
FitState start_state(IndexWeights weights);

/// InputError unless every worker gets a query in each step. `train`: number of training queries.
void check_workers(const FitOptions&, int workers, int64_t train);

/// The training loop of one of `workers`.
class Trainer {
public:
    Trainer(const FitOptions&, const Members&, std::span<const int64_t> tokens, int threads,
            const parallel::Group& workers);

    /// Collective: all take the first one's steps, weights and moments.
    void broadcast_state(FitState&) const;
    /// Collective: one step. Returns false, without a change, if the loss is not finite.
    /// SystemError if workers get different weights.
    bool advance(FitState&) const;

private:
    /// This worker's share of a step's queries.
    std::vector<int64_t> share(const std::vector<int64_t>& rows) const;
    /// The rows of TrainingLayer::key_input whose index keys `worker` computes.
    QueryRange keys_of(int worker) const;
    std::span<const int64_t> positions(QueryRange keys) const;
    /// All index keys.
    Tensor<float, 3> keys(const IndexWeights&) const;
    /// The gradient over all workers, from that of this worker's mean loss; `part` is its share of
    /// the queries.
    IndexWeights gradient(const IndexWeights&, const QueryOperands&, IndexGradient,
                          double part) const;

    /// The mean over the layers that teach of this worker's mean loss, and its gradient. `ids`:
    /// absent in warm-up.
    double loss(const QueryOperands& own, const IndexOperands&, View<const int32_t, 3> ids,
                std::span<const int64_t> tokens, IndexGradient&) const;

    const FitOptions& o_;
    const Members& members_;
    const TrainingLayer& data_;        // of the indexer's own layer
    std::span<const int64_t> tokens_;  // the training queries
    int threads_;
    const parallel::Group& workers_;
};

}  // namespace msa::experiments::fit
