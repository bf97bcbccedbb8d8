// SPDX-License-Identifier: MIT
#include "experiments/fit/training.h"

#include <cmath>

#include "core/adamw.h"
#include "core/random.h"
#include "experiments/driver/sample.h"

namespace msa::experiments::fit {

FitState start_state(IndexWeights weights) {
    FitState state;
    state.first = state.second = weights;
    for (IndexWeights* moments : {&state.first, &state.second})
        std::fill(moments->values().begin(), moments->values().end(), 0.0F);
    state.weights = std::move(weights);
    return state;
}

Trainer::Trainer(const FitOptions& options, const TrainingLayer& data, const LayerOperands& layer,
                 const Indexer& indexer, std::span<const int64_t> tokens, int threads)
    : o_(options),
      data_(data),
      layer_(layer),
      indexer_(indexer),
      tokens_(tokens),
      threads_(threads) {}

bool Trainer::advance(FitState& state) const {
    const int threads = threads_;
    Backend& backend = layer_.backend;
    std::vector<int64_t> rows;
    for (int64_t n : stratified_sample(static_cast<int64_t>(tokens_.size()), o_.queries_per_step,
                                       mix(o_.seed, data_.info.layer, state.step)))
        rows.push_back(tokens_[static_cast<size_t>(n)]);
    const QueryOperands queries(backend, data_, rows, *o_.teacher, threads);
    const Problem& p = queries.problem;
    const IndexOperands index(backend, state.weights, data_, queries, threads);

    Tensor<int32_t, 3> ids;  // absent in warm-up
    if (state.step >= *o_.warmup_steps) ids = indexer_.select(p, o_.rule, index);
    IndexGradient d;
    const double loss =
        mean_of(indexer_.kl(queries, index, std::as_const(ids).view(), *o_.teacher, &d));
    if (!std::isfinite(loss)) return false;

    IndexWeights gradient(state.weights.form());
    index_queries_grad(state.weights, rows_of(queries.x), queries.positions, d.q, gradient,
                       threads);
    index_keys_grad(state.weights, data_.key_input(), data_.key_positions(), d.k, gradient,
                    threads);
    if (d.weights.data() != nullptr)
        index_head_weights_grad(rows_of(queries.x), d.weights, gradient, threads);
    AdamW adamw;
    adamw.weight_decay = o_.weight_decay;
    adamw.update(state.step + 1, cosine_rate(o_.rate, state.step, o_.steps), state.weights.values(),
                 gradient.values(), state.first.values(), state.second.values());
    state.kl.push_back(loss);
    ++state.step;
    return true;
}

}  // namespace msa::experiments::fit
