// SPDX-License-Identifier: MIT
#include "core/train/feed_forward.h"

#include <cmath>

#include "core/error.h"

namespace msa::train {

FeedForward::FeedForward(const ModelSizes& s, int64_t layer, ParameterList& list)
    : model_dim_(s.model_dim), hidden_dim_(s.hidden_dim) {
    const std::string prefix = concat("layers.", layer, ".");
    const auto matrix = [&](const char* name, int64_t rows, int64_t columns, bool added) {
        return list.add({.name = prefix + "mlp." + name + ".weight",
                         .rows = rows,
                         .columns = columns,
                         .init_std = added ? added_init_std(s) : kInitStd,
                         .decays = true,
                         .added = added});
    };
    norm_ = list.add({.name = prefix + "post_attention_layernorm.weight",
                      .rows = 1,
                      .columns = s.model_dim,
                      .start = 1});
    gate_ = matrix("gate_proj", s.hidden_dim, s.model_dim, false);
    up_ = matrix("up_proj", s.hidden_dim, s.model_dim, false);
    down_ = matrix("down_proj", s.model_dim, s.hidden_dim, true);
}

FeedForwardState FeedForward::make_state(Ops& ops, int64_t n) const {
    const auto make = [&](int64_t width) {
        return Buffer<2>(ops.backend(), ops.element(), {n, width});
    };
    return {make(model_dim_), make(model_dim_), make(hidden_dim_), make(hidden_dim_),
            make(hidden_dim_)};
}

FeedForwardScratch FeedForward::make_scratch(Ops& ops, int64_t n) const {
    const auto make = [&](int64_t width) {
        return Buffer<2>(ops.backend(), ops.element(), {n, width});
    };
    return {make(model_dim_), make(hidden_dim_), make(hidden_dim_), make(hidden_dim_)};
}

void FeedForward::forward(Ops& ops, const Weights& w, FeedForwardState& s, Out<2> x) const {
    ops.add(as_list(In<2>(x)), 1, as_list(s.x.out()), Sum::set);
    ops.rms_norm(s.x, w.vector(norm_), s.h);
    ops.linear(s.h, w.matrix(gate_), s.gate, Sum::set);
    ops.linear(s.h, w.matrix(up_), s.up, Sum::set);
    ops.swiglu(s.gate, s.up, s.inner);
    ops.linear(s.inner, w.matrix(down_), x, Sum::add);
}

void FeedForward::backward(Ops& ops, Weights& w, const FeedForwardState& s, FeedForwardScratch& t,
                           Out<2> d) const {
    ops.linear_grad_weight(d, s.inner, w.matrix_gradient(down_));
    ops.linear_grad_input(d, w.matrix(down_), t.d_inner, Sum::set);
    ops.swiglu_grad(s.gate, s.up, t.d_inner, t.d_gate, t.d_up);
    ops.linear_grad_weight(t.d_gate, s.h, w.matrix_gradient(gate_));
    ops.linear_grad_weight(t.d_up, s.h, w.matrix_gradient(up_));
    ops.linear_grad_input(t.d_gate, w.matrix(gate_), t.d_h, Sum::set);
    ops.linear_grad_input(t.d_up, w.matrix(up_), t.d_h, Sum::add);
    ops.rms_norm_grad(s.x, w.vector(norm_), t.d_h, d, w.vector_gradient(norm_), Sum::add);
}

}  // namespace msa::train
