// SPDX-License-Identifier: MIT
// The learned numbers of a model: one list of floats, in which every parameter has a name, a shape
// and a place; beside it its gradient and the optimizer's moments, of the same layout, and a copy
// in the element that products read.
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
    double deviation = 0;  // of the normal values it starts from; 0: it starts as `start`
    float start = 0;
    bool decays = false;   // weight decay: matrices, not norms or sinks
    bool indexer = false;  // belongs to the Index Branch, whose gradient norm is told apart
    bool added = false;    // what it makes is added to the residual stream
    int64_t offset = 0;    // in the list

    int64_t size() const { return rows * columns; }
};

/// Which parameter; what adding one returns.
using Which = size_t;

class ParameterList {
public:
    /// Names must differ.
    Which add(Parameter parameter);
    const std::vector<Parameter>& all() const { return all_; }
    const Parameter& operator[](Which which) const { return all_[which]; }
    /// Floats of the list.
    int64_t size() const { return size_; }
    /// The values a run with this seed starts from: a function of seed, name and element alone.
    std::vector<float> start(uint64_t seed) const;

private:
    std::vector<Parameter> all_;
    int64_t size_ = 0;
};

/// The values that training starts from where a trained model is at hand (continued pretraining):
/// those of its parameters `known`, and for parameters of the Index Branch that it lacks those of
/// list.start(seed), but 0 where they are added to the residual stream: what is new changes nothing
/// at first. Parameters of its Index Branch that the list lacks are left out. InputError naming
/// another parameter that only one of them has, or two shapes.
std::vector<float> continue_from(const ParameterList& list, uint64_t seed,
                                 const ParameterList& known, std::span<const float> values);
/// Likewise for numbers beside the parameters, as the optimizer's moments, with 0 for what is new.
std::vector<float> continue_from(const ParameterList& list, const ParameterList& known,
                                 std::span<const float> values);

/// A gradient whose norm is larger than `norm` is scaled down to it (0: never).
struct Clipping {
    double norm = 1;
    /// The Index Branch's and the backbone's, each by its own norm, so that a detached KL loss does
    /// not slow the backbone down; otherwise both by the norm of the whole.
    bool apart = true;
};

/// The parameters of a model in memory of its backend.
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
    In<2> matrix(Which which) const;
    /// A parameter as floats [columns].
    View<const float, 1> vector(Which which) const;
    View<float, 2> matrix_gradient(Which which);
    View<float, 1> vector_gradient(Which which);

    void clear_gradient();
    /// After values() changed: renews the copy that products read.
    void renew();

    /// Norm of the gradient: of the whole list, of the Index Branch's parameters, of the others.
    struct Norms {
        double all = 0, indexer = 0, backbone = 0;
    };
    Norms gradient_norms() const;
    /// One step of AdamW, the step-th from 1, along the clipped gradient, whose norms are `norms`.
    void step(const AdamW& rule, int64_t step, double rate, const Norms& norms,
              const Clipping& clip);

private:
    const ParameterList& list_;
    Ops& ops_;
    Tensor<float, 1> values_, gradient_, first_, second_;
    Buffer<1> copy_;  // absent where products read floats
};

}  // namespace msa::train
