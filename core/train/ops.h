// SPDX-License-Identifier: MIT
// What a transformer computes beside attention: each operation with its gradient, one
// implementation per kind of processor. The model (core/train/model.h) is written once over this
// interface and over Backend.
//
// Letters: n tokens of the batch, D the width of the model, V the vocabulary. Activations and the
// weights that products read are of element(); parameters that are added or multiplied by channel
// (norms, sinks), gradients of parameters, losses and the optimizer's state are float. Views live
// in the backend's space and calls take their turn among the backend's. The same arguments give
// bitwise the same results, whatever the number of threads. NaN stays NaN.
//
// A gradient operation is handed the gradient of its output and gives that of its inputs: d_ of an
// activation is written (or added to, where Sum says so), d_ of a parameter is always added to.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/indexer/adamw.h"
#include "core/parallel/group.h"

namespace msa::train {

/// Whether a result replaces what is there or is added to it.
enum class Sum : uint8_t { set, add };

class Ops {
public:
    virtual ~Ops() = default;
    Ops() = default;
    Ops(const Ops&) = delete;
    Ops& operator=(const Ops&) = delete;

    /// Where attention is computed, and whose memory all views are.
    virtual Backend& backend() = 0;
    /// Of activations and of the weights of products.
    virtual Element element() const = 0;
    /// What computes, recorded beside results.
    virtual std::string device() { return backend().device(); }

    /// y [n, a] = x [n, b] w^T, w [a, b].
    virtual void linear(In<2> x, In<2> w, Out<2> y, Sum) = 0;
    /// d_x [n, b] = d_y [n, a] w.
    virtual void linear_grad_input(In<2> d_y, In<2> w, Out<2> d_x, Sum) = 0;
    /// d_w [a, b] += d_y^T x.
    virtual void linear_grad_weight(In<2> d_y, In<2> x, View<float, 2> d_w) = 0;

    /// y = x / sqrt(mean(x^2) + epsilon) * w by rows [rows, width], w [width]; kNormEpsilon.
    virtual void rms_norm(In<2> x, View<const float, 1> w, Out<2> y) = 0;
    /// From the x of the forward pass; d_x may be d_y itself where it is set.
    virtual void rms_norm_grad(In<2> x, View<const float, 1> w, In<2> d_y, Out<2> d_x,
                               View<float, 1> d_w, Sum) = 0;

    /// In place: turns channel c of every head of heads [n, H, d] with channel c + half by the
    /// angle whose cosine and sine are table [positions, half, 2] at positions [n]; other channels
    /// stay. `backward` turns the other way, which is the gradient.
    virtual void rotate(Out<3> heads, View<const int32_t, 1> positions, View<const float, 3> table,
                        bool backward) = 0;

    /// y = silu(gate) * up, all [n, F], silu(g) = g / (1 + exp(-g)).
    virtual void swiglu(In<2> gate, In<2> up, Out<2> y) = 0;
    virtual void swiglu_grad(In<2> gate, In<2> up, In<2> d_y, Out<2> d_gate, Out<2> d_up) = 0;

    /// x [n, D] = table [V, D] at tokens [n], each from 0 to V - 1.
    virtual void embed(View<const int32_t, 1> tokens, In<2> table, Out<2> x) = 0;
    virtual void embed_grad(View<const int32_t, 1> tokens, In<2> d_x, View<float, 2> d_table) = 0;

    /// losses [n] = -log softmax(logits)[target], natural log; 0 where the target is kNoTarget.
    /// logits [n, V] become their gradient times `factor`, 0 in rows without a target, where
    /// `gradient` asks for it, and stay otherwise.
    virtual void cross_entropy(Out<2> logits, View<const int32_t, 1> targets, View<float, 1> losses,
                               float factor, bool gradient) = 0;

    /// y = factor * x, or y += factor * x; of any two elements among f32 and element().
    virtual void add(In<1> x, float factor, Out<1> y, Sum) = 0;
    /// many [n, H, d]: one [n, d] for every head.
    virtual void repeat(In<2> one, Out<3> many) = 0;
    /// one [n, d] = the sum over the heads of many [n, H, d].
    virtual void sum_heads(In<3> many, Out<2> one) = 0;

    /// to [m, H, d]: rows[i] of from [n, H, d] as row i; of one element, f32 or element().
    virtual void gather_rows(In<3> from, View<const int32_t, 1> rows, Out<3> to) = 0;
    /// Row i of from [m, H, d] is added to rows[i] of to [n, H, d]; rows differ.
    virtual void add_rows(In<3> from, View<const int32_t, 1> rows, Out<3> to) = 0;
    /// Attention over two parts of the keys as one: row i of part, [m, Hq, dh] and [m, Hq], is
    /// merged into rows[i] of whole, [n, Hq, dh] and [n, Hq]; rows differ. With both lse,
    ///   lse = ln(e^lse_1 + e^lse_2),   out = out_1 e^(lse_1 - lse) + out_2 e^(lse_2 - lse).
    virtual void merge_attention(In<3> part_out, View<const float, 2> part_lse,
                                 View<const int32_t, 1> rows, Out<3> out, View<float, 2> lse) = 0;

    /// Zeros, whatever was there.
    virtual void clear(View<float, 1>) = 0;
    /// The sum of a list of f32 or f64; waits for it.
    virtual double total(In<1> values) = 0;
    /// Sums of the squares of the parts [starts[i], starts[i + 1]) of values; waits for them.
    virtual std::vector<double> squared_norms(View<const float, 1> values,
                                              std::span<const int64_t> starts) = 0;
    /// AdamW::update of a list of parameters; the gradient counts times `factor` (clipping).
    virtual void adamw(const AdamW&, int64_t step, double rate, double factor,
                       View<float, 1> weights, View<const float, 1> gradient, View<float, 1> first,
                       View<float, 1> second) = 0;

    /// Collective among `workers`, always the same ones: the values become their sums over the
    /// workers, the same bits for all; waits for it. The host adds in the workers' order, a GPU in
    /// one that depends on their number and on how they are connected.
    virtual void sum_over(const parallel::Group& workers, View<float, 1> values) = 0;

    static constexpr double kNormEpsilon = 1e-6;
    static constexpr int32_t kNoTarget = -1;
};

/// Float on the host, with Eigen and as many threads as the backend has. InputError unless the
/// backend's memory is the host's.
std::unique_ptr<Ops> make_cpu_ops(std::unique_ptr<Backend> backend);

}  // namespace msa::train
