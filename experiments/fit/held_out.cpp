// SPDX-License-Identifier: MIT
#include "experiments/fit/held_out.h"

#include <algorithm>
#include <cmath>

#include "analysis/entropy.h"
#include "analysis/output_error.h"
#include "analysis/recall.h"

namespace msa::experiments {
namespace {

View<const float, 2> rows_of(const Tensor<float, 3>& one_head) {
    return {one_head.data(), {one_head.extent(0), one_head.extent(2)}};
}

/// Mean over all rows of the KL on the full support (eq:msa-kl).
double mean_kl(Backend& backend, const Problem& p, const IndexInput& index, In<3> q, In<3> k,
               Teacher teacher) {
    Tensor<double, 2> kl({p.queries(), p.kv_heads});
    backend.index_kl(p, index, q, k, {}, {kl, {}, {}}, teacher);
    backend.finish();
    double sum = 0;
    for (int64_t n = 0; n < kl.size(); ++n) sum += kl.data()[n];
    return sum / static_cast<double>(kl.size());
}

/// Entropy of the teacher, from the KL of the uniform distribution over the n visible keys:
/// KL(P || 1/n) = ln n - H(P), and zero index vectors are uniform.
double teacher_entropy(Backend& backend, const Problem& p, In<3> q, In<3> k, Teacher teacher) {
    const Tensor<float, 3> zero_q({p.queries(), p.kv_heads, p.index_dim});
    const Tensor<float, 2> zero_k({p.keys(), p.index_dim});
    double sum = 0;
    for (const KeyRange& seen : visible_keys(p)) sum += std::log(static_cast<double>(seen.count));
    return sum / static_cast<double>(p.queries()) -
           mean_kl(backend, p, {zero_q, zero_k}, q, k, teacher);
}

/// Entropy of the index distribution: attention with index_q as queries of one shared key head.
double index_entropy(Backend& backend, const Problem& p, View<const float, 3> index_q,
                     View<const float, 3> index_k) {
    Problem index = p;
    index.query_heads = p.kv_heads;
    index.kv_heads = 1;
    index.head_dim = p.index_dim;
    index.softmax_scale = p.score_scale();
    Tensor<float, 3> mean_key(index_q.shape());
    Tensor<float, 2> lse({p.queries(), p.kv_heads});
    backend.dense_attention(index, {index_q, index_k, index_k}, {mean_key, lse});
    backend.finish();
    analysis::Entropy entropy(p.kv_heads);
    entropy.add(index, index_q, mean_key, lse);
    return analysis::average(entropy.nats());
}

}  // namespace

HeldOut::HeldOut(const TrainingLayer& data, const std::vector<int64_t>& tokens,
                 const SelectionRule& rule, Teacher teacher, Backend& backend, int threads)
    : data_(data),
      rule_(rule),
      teacher_(teacher),
      backend_(backend),
      threads_(threads),
      problem_(data.problem.with_query_rows(tokens)),
      x_(take_rows(data.x, tokens)),
      q_(take_rows(data.q, tokens)),
      kinds_(analysis::row_kinds(problem_, rule.top_k, false)),
      mass_({problem_.queries(), problem_.kv_heads, problem_.blocks()}),
      dense_out_(q_.shape()),
      oracle_ids_({problem_.queries(), problem_.kv_heads, rule.top_k}) {
    for (int64_t token : tokens) positions_.push_back(data.positions[static_cast<size_t>(token)]);
    Tensor<float, 2> lse({problem_.queries(), problem_.query_heads});
    backend.dense_attention(problem_, {q_, data.k, data.v}, {dense_out_, lse});
    backend.block_mass(problem_, q_, data.k, {mass_, {}});
    backend.select_blocks(problem_, rule, mass_, oracle_ids_);
    entropy_teacher_ = teacher_entropy(backend, problem_, q_, data.k, teacher);
}

int64_t HeldOut::rows_counted() const {
    return std::count(kinds_.begin(), kinds_.end(), analysis::RowKind::counted);
}

Evaluation HeldOut::evaluate(int64_t step, const IndexWeights& weights) const {
    const Problem& p = problem_;
    const Tensor<float, 3> index_q = index_queries(weights, rows_of(x_), positions_, threads_);
    const Tensor<float, 3> index_k = index_keys(weights, data_.hidden(), data_.positions, threads_);
    const IndexInput index{index_q, rows_of(index_k)};
    Tensor<int32_t, 3> ids(oracle_ids_.shape());
    backend_.index_select(p, rule_, index, ids);
    Tensor<float, 3> out(dense_out_.shape());
    Tensor<float, 2> lse({p.queries(), p.query_heads});
    backend_.sparse_attention(p, {q_, data_.k, data_.v}, ids, {out, lse});
    backend_.finish();

    analysis::Recall recall(p.kv_heads, {});
    recall.add(p, kinds_, ids, oracle_ids_, mass_);
    analysis::OutputError error(p.query_heads);
    error.add(kinds_, out, dense_out_);
    Evaluation e;
    e.step = step;
    e.kl = mean_kl(backend_, p, index, q_, data_.k, teacher_);
    e.block_recall = analysis::average(recall.block_recall());
    e.score_recall = analysis::average(recall.score_recall());
    e.mass_kept = analysis::average(recall.mass_kept());
    e.oracle_mass = analysis::average(recall.oracle_mass());
    e.output_error = analysis::average(error.relative());
    e.entropy_index = index_entropy(backend_, p, index_q.view(), index_k.view());
    e.entropy_teacher = entropy_teacher_;
    return e;
}

}  // namespace msa::experiments
