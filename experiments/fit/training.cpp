// SPDX-License-Identifier: MIT
#include "experiments/fit/training.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/indexer/adamw.h"
#include "core/random.h"
#include "experiments/driver/sample.h"

namespace msa::experiments::fit {
namespace {

template <int Rank>
std::span<float> values_of(Tensor<float, Rank>& values) {
    return {values.data(), static_cast<size_t>(values.size())};
}

double norm(std::span<const float> values) {
    double squares = 0;
    for (float value : values) squares += double{value} * double{value};
    return std::sqrt(squares);
}

}  // namespace

FitState start_state(IndexWeights weights) {
    FitState state;
    state.first = state.second = weights;
    for (IndexWeights* moments : {&state.first, &state.second})
        std::fill(moments->values().begin(), moments->values().end(), 0.0F);
    state.weights = std::move(weights);
    return state;
}

void FitState::add(const Evaluation& evaluation) {
    const bool better =
        std::all_of(evaluations.begin(), evaluations.end(), [&](const Evaluation& before) {
            return before.step != best_step || evaluation.is_better_than(before);
        });
    evaluations.push_back(evaluation);
    if (!better) return;
    best = weights;
    best_step = evaluation.step;
}

void check_workers(const FitOptions& o, int workers, int64_t train) {
    require(o.queries_per_step >= workers, "--queries-per-step is ", o.queries_per_step,
            ", must be at least the ", workers, " workers that share them");
    require(train >= workers, "--train has ", train, " queries, must have one for each of the ",
            workers, " workers");
}

Trainer::Trainer(const FitOptions& options, const Members& members, std::span<const int64_t> tokens,
                 int threads, const parallel::Group& workers)
    : o_(options),
      members_(members),
      data_(members.front()->data),
      tokens_(tokens),
      threads_(threads),
      workers_(workers) {}

void Trainer::broadcast_state(FitState& state) const {
    for (const std::span<float> values :
         {state.weights.values(), state.first.values(), state.second.values()})
        workers_.broadcast(std::as_writable_bytes(values));
    workers_.broadcast(std::as_writable_bytes(std::span(&state.step, 1)));
}

std::vector<int64_t> Trainer::share(const std::vector<int64_t>& rows) const {
    std::vector<int64_t> own;
    const auto workers = static_cast<size_t>(workers_.size());
    for (auto n = static_cast<size_t>(workers_.rank()); n < rows.size(); n += workers)
        own.push_back(rows[n]);
    return own;
}

QueryRange Trainer::keys_of(int worker) const {
    const int64_t all = data_.key_input().extent(0);
    return {all * worker / workers_.size(), all * (worker + 1) / workers_.size()};
}

std::span<const int64_t> Trainer::positions(QueryRange keys) const {
    return data_.key_positions().subspan(static_cast<size_t>(keys.begin),
                                         static_cast<size_t>(keys.end - keys.begin));
}

Tensor<float, 3> Trainer::keys(const IndexWeights& weights) const {
    const View<const float, 2> input = data_.key_input();
    const QueryRange own = keys_of(workers_.rank());
    Tensor<float, 3> part =
        index_keys(weights, input.slice(own.begin, own.end - own.begin), positions(own), threads_);
    if (workers_.size() == 1) return part;
    const int64_t heads = part.extent(1), width = heads * part.extent(2);
    const int64_t most = ceil_div(input.extent(0), workers_.size());
    Tensor<float, 2> mine({most, width});
    std::copy_n(part.data(), part.size(), mine.data());
    Tensor<float, 3> parts({workers_.size(), most, width});
    workers_.all_gather(std::as_bytes(values_of(mine)), std::as_writable_bytes(values_of(parts)));
    Tensor<float, 3> all({input.extent(0), heads, part.extent(2)});
    for (int worker = 0; worker < workers_.size(); ++worker) {
        const auto [begin, end] = keys_of(worker);
        std::copy_n(parts.view()[worker].data(), (end - begin) * width, all.view()[begin].data());
    }
    return all;
}

IndexWeights Trainer::gradient(const IndexWeights& weights, const QueryOperands& queries,
                               IndexGradient d, double part) const {
    IndexWeights gradient(weights.form());
    if (workers_.size() > 1) {
        for (Tensor<float, 3>* values : {&d.q, &d.k, &d.weights})
            for (float& value : values_of(*values)) value = static_cast<float>(part * value);
        workers_.all_reduce(values_of(d.k));
    }
    index_queries_grad(weights, rows_of(queries.x), queries.positions, d.q, gradient, threads_);
    const QueryRange own = keys_of(workers_.rank());
    const int64_t count = own.end - own.begin;
    index_keys_grad(weights, data_.key_input().slice(own.begin, count), positions(own),
                    d.k.view().slice(own.begin, count), gradient, threads_);
    if (d.weights.data() != nullptr)
        index_head_weights_grad(rows_of(queries.x), d.weights, gradient, threads_);
    workers_.all_reduce(gradient.values());
    return gradient;
}

double Trainer::loss(const QueryOperands& own, const IndexOperands& index,
                     View<const int32_t, 3> ids, std::span<const int64_t> tokens,
                     IndexGradient& d) const {
    const size_t teachers = o_.taught_by_own ? 1 : members_.size();
    double sum = mean_of(members_.front()->indexer->kl(own, index, ids, *o_.teacher, &d));
    for (size_t n = 1; n < teachers; ++n) {
        const Member& of = *members_[n];
        const QueryOperands queries(of.operands, of.data, tokens, *o_.teacher, threads_);
        IndexGradient more;
        sum += mean_of(of.indexer->kl(queries, index, ids, *o_.teacher, &more));
        for (const auto& [to, from] :
             {std::pair{&d.q, &more.q}, {&d.k, &more.k}, {&d.weights, &more.weights}})
            for (int64_t i = 0; i < to->size(); ++i) to->data()[i] += from->data()[i];
    }
    if (teachers == 1) return sum;
    const auto share = 1 / static_cast<float>(teachers);
    for (Tensor<float, 3>* of : {&d.q, &d.k, &d.weights})
        for (float& value : values_of(*of)) value *= share;
    return sum / static_cast<double>(teachers);
}

bool Trainer::advance(FitState& state) const {
    const Member& first = *members_.front();
    std::vector<int64_t> rows;
    for (int64_t n : stratified_sample(static_cast<int64_t>(tokens_.size()), o_.queries_per_step,
                                       mix(o_.seed, data_.info.layer, state.step)))
        rows.push_back(tokens_[static_cast<size_t>(n)]);
    const std::vector<int64_t> own = share(rows);
    const double part = static_cast<double>(own.size()) / static_cast<double>(rows.size());
    const QueryOperands queries(first.operands, data_, own, *o_.teacher, threads_);
    const IndexOperands index(first.operands.backend, state.weights, keys(state.weights), queries,
                              threads_);

    Tensor<int32_t, 3> ids;  // absent in warm-up
    if (state.step >= *o_.warmup_steps)
        ids = first.indexer->select(queries.problem, o_.rule, index);
    IndexGradient d;
    double loss = part * this->loss(queries, index, std::as_const(ids).view(), own, d);
    workers_.all_reduce(std::span(&loss, 1));
    if (!std::isfinite(loss)) return false;

    const IndexWeights gradient = this->gradient(state.weights, queries, std::move(d), part);
    AdamW adamw;
    adamw.weight_decay = o_.weight_decay;
    adamw.update(state.step + 1, cosine_rate(o_.learning_rate, state.step, o_.steps),
                 state.weights.values(), gradient.values(), state.first.values(),
                 state.second.values());
    state.kl.push_back(loss);
    ++state.step;
    workers_.require_same(norm(state.weights.values()),
                          concat("weights after step ", state.step, ": their norm"));
    return true;
}

}  // namespace msa::experiments::fit
