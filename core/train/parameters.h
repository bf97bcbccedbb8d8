// SPDX-License-Identifier: MIT
// The parameters of a model: one list of floats, in which each parameter has a name, a shape and an
// offset. The gradient and the optimizer's moments have the same layout. A further copy has the
// element type of products.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/train/buffer.h"
#include "core/train/ops.h"

namespace msa::train {

/// Vectors have one row.
struct Parameter {
    std::string name;  // as in transformers: "layers.3.self_attn.q_proj.weight"
    int64_t rows = 0, columns = 0;
    double init_std = 0;  // of the normal values it starts from; 0: it starts as `start`
    float start = 0;
    bool decays = false;   // weight decay: matrices, not norms or sinks
    bool indexer = false;  // belongs to the Index Branch, whose gradient norm is separate
    bool added = false;    // its output is added to the residual stream
    int64_t offset = 0;    // in the list

    int64_t size() const { return rows * columns; }
};

/// Position of a parameter in its list, which add() returns.
using ParameterIndex = size_t;

class ParameterList {
public:
    /// Names must differ.
    ParameterIndex add(Parameter parameter);
    const std::vector<Parameter>& all() const { return all_; }
    const Parameter& operator[](ParameterIndex index) const { return all_[index]; }
    /// Floats of the list.
    int64_t size() const { return size_; }
    /// Initial values: a function of the seed and, for each value, its parameter's name and index.
    std::vector<float> start(uint64_t seed) const;

private:
    std::vector<Parameter> all_;
    int64_t size_ = 0;
};

/// Initial values for continued pretraining from a trained model with the parameters `known`.
/// Parameters of the Index Branch that it lacks get those of list.start(seed), or 0 if their output
/// is added to the residual stream, so that they change nothing at first. Parameters of its Index
/// Branch that `list` lacks are dropped. InputError naming any other parameter that only one of
/// them has, or one with two shapes.
std::vector<float> continue_from(const ParameterList& list, uint64_t seed,
                                 const ParameterList& known, std::span<const float> values);
/// The same for values that belong to the parameters, like the optimizer's moments, with 0 for new
/// ones.
std::vector<float> continue_from(const ParameterList& list, const ParameterList& known,
                                 std::span<const float> values);

/// Gradient clipping: a gradient with a larger norm is scaled down to `norm` (0: never).
struct Clipping {
    double norm = 1;
    /// Clips the gradients of the Index Branch and the backbone each by its own norm, so that a
    /// detached KL loss does not slow the backbone; otherwise both by the norm of the whole.
    bool apart = true;
};

/// The parameters of a model in its backend's memory.
class Weights {
public:
    Weights(const ParameterList& list, Ops& ops, std::span<const float> start);

    View<const float, 1> values() const { return values_; }
    View<const float, 1> gradient() const { return gradient_; }
    View<float, 1> gradient() { return gradient_; }
    View<float, 1> first() { return first_; }
    View<float, 1> second() { return second_; }
    View<float, 1> values() { return values_; }

    /// A parameter for a product [rows, columns], in the element of products.
    In<2> matrix(ParameterIndex index) const;
    /// A parameter as floats [columns].
    View<const float, 1> vector(ParameterIndex index) const;
    View<float, 2> matrix_gradient(ParameterIndex index);
    View<float, 1> vector_gradient(ParameterIndex index);

    void clear_gradient();
    /// Updates the copy that products read; to be called after values() changed.
    void update_copy();

    /// Norms of the gradient: of the whole list, of the Index Branch's parameters, and of the
    /// others.
    struct Norms {
        double all = 0, indexer = 0, backbone = 0;
    };
    Norms gradient_norms() const;
    /// One step of AdamW with the clipped gradient, whose norms are `norms`; `step` counts from 1.
    /// `freeze_index`: the Index Branch's parameters and moments stay.
    void step(const AdamW& rule, int64_t step, double lr, const Norms& norms, const Clipping& clip,
              bool freeze_index = false);

private:
    const ParameterList& list_;
    Ops& ops_;
    Tensor<float, 1> values_, gradient_, first_, second_;
    Buffer<1> copy_;  // absent where products read floats
};

}  // namespace msa::train
