// SPDX-License-Identifier: MIT
#include "core/train/attention_layer.h"

#include <cmath>

#include "core/error.h"
#include "core/rope.h"

namespace msa::train {
namespace {

/// [n, H, d] as [n * H, d]: one row per head.
template <typename Void>
AnyView<Void, 2> by_heads(const AnyView<Void, 3>& heads) {
    const Shape<3>& s = heads.shape();
    return reshaped<2>(heads, {s[0] * s[1], s[2]});
}

}  // namespace

Tensor<float, 3> rope_table(Backend& backend, int64_t max_positions, int64_t rotary_dim,
                            double theta) {
    if (rotary_dim == 0) return {};
    const std::vector<double> frequencies = plain_frequencies(rotary_dim, theta);
    Tensor<float, 3> table({max_positions, rotary_dim / 2, 2});
    for (int64_t i = 0; i < max_positions; ++i)
        for (int64_t c = 0; c < rotary_dim / 2; ++c) {
            const double angle = static_cast<double>(i) * frequencies[static_cast<size_t>(c)];
            table(i, c, 0) = static_cast<float>(std::cos(angle));
            table(i, c, 1) = static_cast<float>(std::sin(angle));
        }
    return backend.upload(table.view());
}

AttentionLayer::AttentionLayer(const ModelConfig& config, int64_t layer, ParameterList& list)
    : config_(config), kind_(config.attention_of(layer)) {
    const ModelSizes& s = config.sizes;
    const std::string prefix = concat("layers.", layer, ".");
    const auto norm = [&](const std::string& name, int64_t width, bool indexer) {
        return list.add({.name = prefix + name + ".weight",
                         .rows = 1,
                         .columns = width,
                         .start = 1,
                         .indexer = indexer});
    };
    const auto matrix = [&](const std::string& name, int64_t rows, int64_t columns, bool indexer,
                            bool added = false) {
        return list.add({.name = prefix + "self_attn." + name + ".weight",
                         .rows = rows,
                         .columns = columns,
                         .init_std = added ? added_init_std(s) : kInitStd,
                         .decays = true,
                         .indexer = indexer,
                         .added = added});
    };
    norm_ = norm("input_layernorm", s.model_dim, false);
    q_ = matrix("q_proj", s.query_heads * s.head_dim, s.model_dim, false);
    k_ = matrix("k_proj", s.kv_heads * s.head_dim, s.model_dim, false);
    v_ = matrix("v_proj", s.kv_heads * s.head_dim, s.model_dim, false);
    o_ = matrix("o_proj", s.model_dim, s.query_heads * s.head_dim, false, true);
    q_norm_ = norm("self_attn.q_norm", s.head_dim, false);
    k_norm_ = norm("self_attn.k_norm", s.head_dim, false);
    if (config.msa.sink)
        sinks_ =
            list.add({.name = prefix + "self_attn.sinks", .rows = 1, .columns = s.query_heads});
    if (!has_index()) return;
    index_.q = matrix("indexer.q_proj", s.kv_heads * s.index_dim, s.model_dim, true);
    index_.k = matrix("indexer.k_proj", s.index_dim, s.model_dim, true);
    if (s.index_norm) {
        index_.q_norm = norm("self_attn.indexer.q_norm", s.index_dim, true);
        index_.k_norm = norm("self_attn.indexer.k_norm", s.index_dim, true);
    }
    if (!config.msa.value_head) return;
    index_.v = matrix("indexer.v_proj", s.index_dim, s.model_dim, true);
    index_.o = matrix("indexer.o_proj", s.model_dim, s.kv_heads * s.index_dim, true, true);
}

AttentionState AttentionLayer::make_state(Ops& ops, int64_t n) const {
    const ModelSizes& s = config_.sizes;
    Backend& b = ops.backend();
    const Shape<3> queries{n, s.query_heads, s.head_dim}, keys{n, s.kv_heads, s.head_dim};
    const auto heads = [&](const Shape<3>& shape) { return Buffer<3>(b, ops.element(), shape); };
    AttentionState state{.x{b, ops.element(), {n, s.model_dim}},
                         .h{b, ops.element(), {n, s.model_dim}},
                         .raw_q = heads(queries),
                         .q = heads(queries),
                         .raw_k = heads(keys),
                         .k = heads(keys),
                         .v = heads(keys),
                         .out = heads(queries),
                         .lse = b.make<float, 2>({n, s.query_heads})};
    if (!has_index()) return state;
    const Shape<3> groups{n, s.kv_heads, s.index_dim}, one{n, 1, s.index_dim};
    state.raw_index_q = heads(groups);
    state.index_q = heads(groups);
    state.raw_index_k = heads(one);
    state.index_k = heads(one);
    state.ids = b.make<int32_t, 3>({n, s.kv_heads, config_.msa.rule.top_k});
    state.kl = b.make<double, 2>({n, s.kv_heads});
    if (config_.msa.kl) state.support_lse = b.make<float, 2>({n, s.kv_heads});
    if (!config_.msa.value_head) return state;
    state.index_v = heads(one);
    state.many_k = heads(groups);
    state.many_v = heads(groups);
    state.index_out = heads(groups);
    state.index_lse = b.make<float, 2>({n, s.kv_heads});
    return state;
}

AttentionScratch AttentionLayer::make_scratch(Ops& ops, int64_t n) const {
    const ModelSizes& s = config_.sizes;
    Backend& b = ops.backend();
    const Shape<3> queries{n, s.query_heads, s.head_dim}, keys{n, s.kv_heads, s.head_dim};
    const auto heads = [&](const Shape<3>& shape) { return Buffer<3>(b, ops.element(), shape); };
    AttentionScratch t{.d_h{b, ops.element(), {n, s.model_dim}},
                       .d_out = heads(queries),
                       .d_q = heads(queries),
                       .d_k = heads(keys),
                       .d_v = heads(keys)};
    if (config_.msa.sink) t.d_sinks = b.make<float, 1>({s.query_heads});
    if (!config_.has_index()) return t;
    const Shape<3> groups{n, s.kv_heads, s.index_dim}, one{n, 1, s.index_dim};
    t.kl_d_q = b.make<float, 3>(groups);
    t.kl_d_k = b.make<float, 2>({n, s.index_dim});
    t.d_index_q = heads(groups);
    t.d_index_k = heads(one);
    if (config_.msa.kl && (config_.msa.kl_full_support || config_.msa.other_teacher))
        t.teacher_lse = b.make<float, 2>({n, s.query_heads});
    if (config_.msa.other_teacher) {
        t.other_q = heads(queries);
        t.other_k = heads(keys);
    }
    if (!config_.msa.value_head) return t;
    t.d_index_v = heads(one);
    t.d_index_out = heads(groups);
    t.d_many_k = heads(groups);
    t.d_many_v = heads(groups);
    return t;
}

View<const float, 1> AttentionLayer::sinks(const Weights& weights) const {
    return config_.msa.sink ? weights.vector(sinks_) : View<const float, 1>();
}

AttentionInput AttentionLayer::input(const Pass& pass, const AttentionState& s) const {
    return {s.q, s.k, s.v, sinks(pass.weights)};
}

/// ids of the selected support; absent where it is the full one.
View<const int32_t, 3> AttentionLayer::support(const Pass& pass, const AttentionState& s) const {
    return pass.sparse && kind_ == Attention::msa ? View<const int32_t, 3>(s.ids.view())
                                                  : View<const int32_t, 3>();
}

void AttentionLayer::forward(const Pass& pass, View<const float, 3> rope,
                             View<const float, 3> index_rope, AttentionState& s, Out<2> x) const {
    auto& [ops, w, batch, sparse, attached] = pass;
    ops.add(as_list(In<2>(x)), 1, as_list(s.x.out()), Sum::set);
    ops.rms_norm(s.x, w.vector(norm_), s.h);
    ops.linear(s.h, w.matrix(q_), flat(s.raw_q.out()), Sum::set);
    ops.linear(s.h, w.matrix(k_), flat(s.raw_k.out()), Sum::set);
    ops.linear(s.h, w.matrix(v_), flat(s.v.out()), Sum::set);
    ops.rms_norm(by_heads(s.raw_q.in()), w.vector(q_norm_), by_heads(s.q.out()));
    ops.rms_norm(by_heads(s.raw_k.in()), w.vector(k_norm_), by_heads(s.k.out()));
    if (rope) {
        ops.rotate(s.q, batch.positions, rope, false);
        ops.rotate(s.k, batch.positions, rope, false);
    }
    if (has_index()) project_index(pass, index_rope, s);
    attend(pass, s);
    ops.linear(flat(s.out.in()), w.matrix(o_), x, Sum::add);
    if (has_index() && config_.msa.value_head) value_head(pass, s, x);
}

void AttentionLayer::project_index(const Pass& pass, View<const float, 3> rope,
                                   AttentionState& s) const {
    auto& [ops, w, batch, sparse, attached] = pass;
    const auto heads = [&, &ops = ops, &w = w, &batch = batch](ParameterIndex weight,
                                                               ParameterIndex norm, Buffer<3>& raw,
                                                               Buffer<3>& to) {
        ops.linear(s.h, w.matrix(weight), flat(raw.out()), Sum::set);
        if (config_.sizes.index_norm)
            ops.rms_norm(by_heads(raw.in()), w.vector(norm), by_heads(to.out()));
        else
            ops.add(as_list(raw.in()), 1, as_list(to.out()), Sum::set);
        if (rope) ops.rotate(to, batch.positions, rope, false);
    };
    heads(index_.q, index_.q_norm, s.raw_index_q, s.index_q);
    heads(index_.k, index_.k_norm, s.raw_index_k, s.index_k);
}

void AttentionLayer::attend(const Pass& pass, AttentionState& s) const {
    Backend& backend = pass.ops.backend();
    const Problem p = config_.problem(pass.batch.layout);
    if (kind_ == Attention::window) {
        s.window->forward(pass.ops, p, input(pass, s), {s.out, s.lse});
        return;
    }
    if (!support(pass, s)) {
        backend.dense_attention(p, input(pass, s), {s.out, s.lse});
        return;
    }
    backend.index_select(p, config_.msa.rule, {s.index_q, flat(s.index_k.in())}, s.ids,
                         s.support_lse);
    backend.sparse_attention(p, input(pass, s), s.ids, {s.out, s.lse});
}

void AttentionLayer::value_head(const Pass& pass, AttentionState& s, Out<2> y) const {
    auto& [ops, w, batch, sparse, attached] = pass;
    ops.linear(s.h, w.matrix(index_.v), flat(s.index_v.out()), Sum::set);
    ops.repeat(flat(s.index_k.in()), s.many_k);
    ops.repeat(flat(s.index_v.in()), s.many_v);
    const Problem p = config_.value_head_problem(batch.layout);
    const AttentionInput in{s.index_q, s.many_k, s.many_v};
    if (const View<const int32_t, 3> ids = support(pass, s))
        ops.backend().sparse_attention(p, in, ids, {s.index_out, s.index_lse});
    else
        ops.backend().dense_attention(p, in, {s.index_out, s.index_lse});
    ops.linear(flat(s.index_out.in()), w.matrix(index_.o), y, Sum::add);
}

void AttentionLayer::backward(const Pass& pass, View<const float, 3> rope,
                              View<const float, 3> index_rope, AttentionState& s,
                              AttentionScratch& t, Out<2> d) const {
    auto& [ops, w, batch, sparse, attached] = pass;
    ops.linear_grad_weight(d, flat(s.out.in()), w.matrix_gradient(o_));
    ops.linear_grad_input(d, w.matrix(o_), flat(t.d_out.out()), Sum::set);
    attend_grad(pass, s, t);
    heads_grad(pass, rope, s.raw_q, t.d_q, q_norm_, true);
    heads_grad(pass, rope, s.raw_k, t.d_k, k_norm_, true);
    Sum sum = Sum::set;
    for (auto [index, gradient] : {std::pair{q_, &t.d_q}, {k_, &t.d_k}, {v_, &t.d_v}}) {
        ops.linear_grad_weight(flat(gradient->in()), s.h, w.matrix_gradient(index));
        ops.linear_grad_input(flat(gradient->in()), w.matrix(index), t.d_h, sum);
        sum = Sum::add;
    }
    if (has_index()) {
        if (config_.msa.value_head) value_head_grad(pass, s, t, d);
        index_grad(pass, index_rope, s, t);
    }
    ops.rms_norm_grad(s.x, w.vector(norm_), t.d_h, d, w.vector_gradient(norm_), Sum::add);
}

void AttentionLayer::attend_grad(const Pass& pass, AttentionState& s, AttentionScratch& t) const {
    Backend& backend = pass.ops.backend();
    const Problem p = config_.problem(pass.batch.layout);
    const AttentionSaved saved{s.out, s.lse, t.d_out};
    const AttentionGradient to{t.d_q, t.d_k, t.d_v, t.d_sinks};
    if (kind_ == Attention::window)
        s.window->backward(pass.ops, p, input(pass, s), saved, to);
    else if (const View<const int32_t, 3> ids = support(pass, s))
        backend.sparse_attention_grad(p, input(pass, s), ids, saved, to);
    else
        backend.dense_attention_grad(p, input(pass, s), saved, to);
    if (t.d_sinks.data() != nullptr)
        pass.ops.add(View<const float, 1>(t.d_sinks), 1, pass.weights.vector_gradient(sinks_),
                     Sum::add);
}

void AttentionLayer::heads_grad(const Pass& pass, View<const float, 3> rope, Buffer<3>& raw,
                                Buffer<3>& d, ParameterIndex norm, bool normed) const {
    auto& [ops, w, batch, sparse, attached] = pass;
    if (rope) ops.rotate(d, batch.positions, rope, true);
    if (normed)
        ops.rms_norm_grad(by_heads(raw.in()), w.vector(norm), by_heads(d.in()), by_heads(d.out()),
                          w.vector_gradient(norm), Sum::set);
}

/// The gradient of index_q, index_k and index_v through O_idx.
void AttentionLayer::value_head_grad(const Pass& pass, AttentionState& s, AttentionScratch& t,
                                     In<2> d) const {
    auto& [ops, w, batch, sparse, attached] = pass;
    ops.linear_grad_weight(d, flat(s.index_out.in()), w.matrix_gradient(index_.o));
    ops.linear_grad_input(d, w.matrix(index_.o), flat(t.d_index_out.out()), Sum::set);
    const Problem p = config_.value_head_problem(batch.layout);
    const AttentionInput in{s.index_q, s.many_k, s.many_v};
    const AttentionSaved saved{s.index_out, s.index_lse, t.d_index_out};
    const AttentionGradient to{t.d_index_q, t.d_many_k, t.d_many_v};
    if (const View<const int32_t, 3> ids = support(pass, s))
        ops.backend().sparse_attention_grad(p, in, ids, saved, to);
    else
        ops.backend().dense_attention_grad(p, in, saved, to);
    ops.sum_heads(t.d_many_k, flat(t.d_index_k.out()));
    ops.sum_heads(t.d_many_v, flat(t.d_index_v.out()));
    ops.linear_grad_weight(flat(t.d_index_v.in()), s.h, w.matrix_gradient(index_.v));
    ops.linear_grad_input(flat(t.d_index_v.in()), w.matrix(index_.v), t.d_h, Sum::add);
}

/// Adds the gradients of the index projections from the value head (whose gradients of index_q and
/// index_k are computed before) and from the KL loss. Two passes if only one of the two may flow to
/// the layer's input.
void AttentionLayer::index_grad(const Pass& pass, View<const float, 3> rope, AttentionState& s,
                                AttentionScratch& t) const {
    const MsaOptions& o = config_.msa;
    if (!o.kl) {
        index_heads_grad(pass, rope, s, t, o.detach_lm);
        return;
    }
    kl_grad(pass, s, t);
    const bool detach = o.detach || !pass.attached;
    const bool together = o.value_head && detach == o.detach_lm;
    if (o.value_head && !together) index_heads_grad(pass, rope, s, t, o.detach_lm);
    const Sum sum = together ? Sum::add : Sum::set;
    pass.ops.add(as_list(In<3>(t.kl_d_q)), 1, as_list(t.d_index_q.out()), sum);
    pass.ops.add(as_list(In<2>(t.kl_d_k)), 1, as_list(t.d_index_k.out()), sum);
    index_heads_grad(pass, rope, s, t, detach);
}

/// The KL loss, and its gradient of index_q and index_k.
void AttentionLayer::kl_grad(const Pass& pass, AttentionState& s, AttentionScratch& t) const {
    auto& [ops, w, batch, sparse, attached] = pass;
    const MsaOptions& o = config_.msa;
    const Problem p = config_.problem(batch.layout);
    const View<const int32_t, 3> ids =
        o.kl_full_support ? View<const int32_t, 3>() : support(pass, s);
    const IndexInput index{s.index_q, flat(s.index_k.in())};
    IndexKlInput in{.index = index, .q = s.q, .k = s.k, .ids = ids, .sinks = sinks(w)};
    const bool same_support = static_cast<bool>(ids) == static_cast<bool>(support(pass, s));
    if (ids && same_support) in.index_lse = s.support_lse;
    if (o.other_teacher) {
        ops.gather_rows(s.q, t.next_sequence, t.other_q);
        ops.gather_rows(s.k, t.next_sequence, t.other_k);
        in.q = t.other_q;
        in.k = t.other_k;
    }
    if (same_support && !o.other_teacher) {
        in.main_lse = s.lse;
    } else {  // attention is faster than what index_kl would do for its lse
        const AttentionInput teacher{in.q, in.k, s.v, in.sinks};
        if (ids)
            ops.backend().sparse_attention(p, teacher, ids, {t.d_out, t.teacher_lse});
        else
            ops.backend().dense_attention(p, teacher, {t.d_out, t.teacher_lse});
        in.main_lse = t.teacher_lse;
    }
    const int64_t queries = batch.step_tokens > 0 ? batch.step_tokens : p.queries();
    in.gradient_scale = o.kl_weight / static_cast<double>(queries * p.kv_heads);
    ops.backend().index_kl(p, in, {s.kl, t.kl_d_q, t.kl_d_k});
}

/// From the gradient of index_q and index_k, which is used up, to that of their projections and,
/// unless `detach`, of the layer's input.
void AttentionLayer::index_heads_grad(const Pass& pass, View<const float, 3> rope,
                                      AttentionState& s, AttentionScratch& t, bool detach) const {
    auto& [ops, w, batch, sparse, attached] = pass;
    const bool normed = config_.sizes.index_norm;
    heads_grad(pass, rope, s.raw_index_q, t.d_index_q, index_.q_norm, normed);
    heads_grad(pass, rope, s.raw_index_k, t.d_index_k, index_.k_norm, normed);
    for (auto [index, gradient] : {std::pair{index_.q, &t.d_index_q}, {index_.k, &t.d_index_k}}) {
        ops.linear_grad_weight(flat(gradient->in()), s.h, w.matrix_gradient(index));
        if (!detach) ops.linear_grad_input(flat(gradient->in()), w.matrix(index), t.d_h, Sum::add);
    }
}

}  // namespace msa::train
