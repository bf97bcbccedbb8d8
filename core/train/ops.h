// SPDX-License-Identifier: MIT
// A transformer's operations other than attention, each with its gradient, one implementation per
// kind of processor. The model (core/train/model.h) is written once over this interface and
// Backend.
//
// Letters: n tokens of the batch, D the width of the model, V the vocabulary. Activations and the
// weights of matrix products have the type element(). Parameters applied by channel (norms, sinks),
// gradients of parameters, losses and the optimizer's state are float. Views live in the backend's
// space, and calls run in order with the backend's. The same arguments give bitwise the same
// results, whatever the number of threads. NaN stays NaN.
//
// A gradient operation takes the gradient of its output and computes those of its inputs. d_ of an
// activation is written, or added to if Sum says so; d_ of a parameter is always added to.
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

    /// The backend that computes attention and owns the memory of all views.
    virtual Backend& backend() = 0;
    /// Type of activations and of the weights of products.
    virtual Element element() const = 0;
    /// The device and libraries, recorded beside results.
    virtual std::string device() { return backend().device(); }

    /// y [n, a] = x [n, b] w^T, w [a, b].
    virtual void linear(In<2> x, In<2> w, Out<2> y, Sum) = 0;
    /// d_x [n, b] = d_y [n, a] w.
    virtual void linear_grad_input(In<2> d_y, In<2> w, Out<2> d_x, Sum) = 0;
    /// d_w [a, b] += d_y^T x.
    virtual void linear_grad_weight(In<2> d_y, In<2> x, View<float, 2> d_w) = 0;

    /// y = x / sqrt(mean(x^2) + epsilon) * w by rows [rows, width], w [width]; kNormEpsilon.
    virtual void rms_norm(In<2> x, View<const float, 1> w, Out<2> y) = 0;
    /// x is that of the forward pass. With Sum::set, d_x may be d_y itself.
    virtual void rms_norm_grad(In<2> x, View<const float, 1> w, In<2> d_y, Out<2> d_x,
                               View<float, 1> d_w, Sum) = 0;

    /// In place: rotates channels c and c + half of every head of heads [n, H, d] by the angle
    /// whose cosine and sine are table [positions, half, 2] at positions [n]; other channels are
    /// unchanged. `backward` rotates the other way, which is the gradient.
    virtual void rotate(Out<3> heads, View<const int32_t, 1> positions, View<const float, 3> table,
                        bool backward) = 0;

    /// y = silu(gate) * up, all [n, F], silu(g) = g / (1 + exp(-g)).
    virtual void swiglu(In<2> gate, In<2> up, Out<2> y) = 0;
    virtual void swiglu_grad(In<2> gate, In<2> up, In<2> d_y, Out<2> d_gate, Out<2> d_up) = 0;

    /// x [n, D] = table [V, D] at tokens [n], each from 0 to V - 1.
    virtual void embed(View<const int32_t, 1> tokens, In<2> table, Out<2> x) = 0;
    virtual void embed_grad(View<const int32_t, 1> tokens, In<2> d_x, View<float, 2> d_table) = 0;

    /// losses [n] = -log softmax(logits)[target], natural log; 0 if the target is kNoTarget. With
    /// `gradient`, logits [n, V] become their gradient times `factor`, 0 in rows without a target.
    virtual void cross_entropy(Out<2> logits, View<const int32_t, 1> targets, View<float, 1> losses,
                               float factor, bool gradient) = 0;

    /// y = factor * x, or y += factor * x. x and y may each be f32 or element().
    virtual void add(In<1> x, float factor, Out<1> y, Sum) = 0;
    /// many [n, H, d]: one [n, d] for every head.
    virtual void repeat(In<2> one, Out<3> many) = 0;
    /// one [n, d] = the sum over the heads of many [n, H, d].
    virtual void sum_heads(In<3> many, Out<2> one) = 0;

    /// Row i of to [m, H, d] = row rows[i] of from [n, H, d]; both f32 or both element().
    virtual void gather_rows(In<3> from, View<const int32_t, 1> rows, Out<3> to) = 0;
    /// Adds row i of from [m, H, d] to row rows[i] of to [n, H, d]; `rows` has no repeats.
    virtual void add_rows(In<3> from, View<const int32_t, 1> rows, Out<3> to) = 0;
    /// Merges attention over two parts of the keys: row i of part, [m, Hq, dh] and [m, Hq], goes
    /// into row rows[i] of whole, [n, Hq, dh] and [n, Hq]; `rows` has no repeats. With both lse,
    ///   lse = ln(e^lse_1 + e^lse_2),   out = out_1 e^(lse_1 - lse) + out_2 e^(lse_2 - lse).
    virtual void merge_attention(In<3> part_out, View<const float, 2> part_lse,
                                 View<const int32_t, 1> rows, Out<3> out, View<float, 2> lse) = 0;

    /// Fills with zeros.
    virtual void clear(View<float, 1>) = 0;
    /// The sum of f32 or f64 values; waits for the result.
    virtual double total(In<1> values) = 0;
    /// Sums of squares of the parts [starts[i], starts[i + 1]) of values; waits for the result.
    virtual std::vector<double> squared_norms(View<const float, 1> values,
                                              std::span<const int64_t> starts) = 0;
    /// AdamW::update of a list of parameters, with the gradient times `factor` (clipping).
    virtual void adamw(const AdamW&, int64_t step, double lr, double factor, View<float, 1> weights,
                       View<const float, 1> gradient, View<float, 1> first,
                       View<float, 1> second) = 0;

    /// Collective among `workers`, which must be the same in every call: each value becomes its sum
    /// over the workers, with the same bits on all; waits for the result. The host adds in rank
    /// order. The order on GPUs depends on their number and connections.
    virtual void sum_over(const parallel::Group& workers, View<float, 1> values) = 0;

    static constexpr double kNormEpsilon = 1e-6;
    static constexpr int32_t kNoTarget = -1;
};

/// Float on the host, with Eigen and the backend's number of threads. InputError unless the
/// backend's memory is the host's.
std::unique_ptr<Ops> make_cpu_ops(std::unique_ptr<Backend> backend);

}  // namespace msa::train
