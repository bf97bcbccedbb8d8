// SPDX-License-Identifier: MIT
#include "experiments/fit/training.h"

#include <cmath>

#include "core/adamw.h"
#include "core/random.h"
#include "experiments/common/sample.h"

namespace msa::experiments {

FitState start_state(IndexWeights weights) {
    FitState state;
    state.first = state.second = weights;
    for (IndexWeights* moments : {&state.first, &state.second})
        std::fill(moments->values().begin(), moments->values().end(), 0.0F);
    state.weights = std::move(weights);
    return state;
}

Trainer::Trainer(const FitOptions& options, const TrainingLayer& data,
                 std::span<const int64_t> tokens, Backend& backend)
    : o_(options), data_(data), tokens_(tokens), backend_(backend) {}

bool Trainer::advance(FitState& state) const {
    const int threads = o_.backend_options.threads;
    std::vector<int64_t> rows, positions;
    for (int64_t n : stratified_sample(static_cast<int64_t>(tokens_.size()), o_.queries_per_step,
                                       mix(o_.seed, data_.info.layer, state.step))) {
        rows.push_back(tokens_[static_cast<size_t>(n)]);
        positions.push_back(data_.positions[static_cast<size_t>(rows.back())]);
    }
    const Problem p = data_.problem.with_query_rows(rows);
    const Tensor<float, 3> x = take_rows(data_.x, rows), q = take_rows(data_.q, rows);
    const View<const float, 2> hidden(x.data(), {x.extent(0), x.extent(2)});
    const Tensor<float, 3> index_q = index_queries(state.weights, hidden, positions, threads);
    const Tensor<float, 3> index_k =
        index_keys(state.weights, data_.hidden(), data_.positions, threads);
    const IndexInput index{index_q, View<const float, 2>(index_k.data(), {p.keys(), p.index_dim})};

    Tensor<int32_t, 3> ids;  // absent in warm-up
    if (state.step >= o_.warmup_steps) {
        ids = Tensor<int32_t, 3>({p.queries(), p.kv_heads, o_.rule.top_k});
        backend_.index_select(p, o_.rule, index, ids);
    }
    Tensor<double, 2> kl({p.queries(), p.kv_heads});
    Tensor<float, 3> d_index_q(index_q.shape()), d_index_k(index_k.shape());
    backend_.index_kl(p, index, q, data_.k, ids.view(),
                      {kl, d_index_q, {d_index_k.data(), {p.keys(), p.index_dim}}}, o_.teacher);
    backend_.finish();
    double loss = 0;
    for (int64_t n = 0; n < kl.size(); ++n) loss += kl.data()[n];
    loss /= static_cast<double>(kl.size());
    if (!std::isfinite(loss)) return false;

    IndexWeights gradient(state.weights.form());
    index_queries_grad(state.weights, hidden, positions, d_index_q, gradient, threads);
    index_keys_grad(state.weights, data_.hidden(), data_.positions, d_index_k, gradient, threads);
    AdamW adamw;
    adamw.weight_decay = o_.weight_decay;
    adamw.update(state.step + 1, cosine_rate(o_.rate, state.step, o_.steps), state.weights.values(),
                 gradient.values(), state.first.values(), state.second.values());
    state.kl.push_back(loss);
    ++state.step;
    return true;
}

}  // namespace msa::experiments
