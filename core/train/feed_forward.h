// SPDX-License-Identifier: MIT
// The other half of a transformer's layer: y = x + W_down swiglu(W_gate h, W_up h), h = norm(x).
#pragma once

#include "core/train/config.h"
#include "core/train/parameters.h"

namespace msa::train {

struct FeedForwardState {
    Buffer<2> x, h;             // [n, D]
    Buffer<2> gate, up, inner;  // [n, F]
};

struct FeedForwardScratch {
    Buffer<2> d_h;                    // [n, D]
    Buffer<2> d_gate, d_up, d_inner;  // [n, F]
};

class FeedForward {
public:
    FeedForward(const ModelSizes& sizes, int64_t layer, ParameterList& parameters);

    FeedForwardState make_state(Ops& ops, int64_t tokens) const;
    FeedForwardScratch make_scratch(Ops& ops, int64_t tokens) const;

    /// x [n, D] becomes y.
    void forward(Ops& ops, const Weights& w, FeedForwardState& s, Out<2> x) const;
    /// d, the gradient of y, becomes that of x.
    void backward(Ops& ops, Weights& w, const FeedForwardState& s, FeedForwardScratch& t,
                  Out<2> d) const;

private:
    int64_t model_dim_, hidden_dim_;
    ParameterIndex norm_, gate_, up_, down_;
};

}  // namespace msa::train
