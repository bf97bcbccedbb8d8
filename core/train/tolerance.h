// SPDX-License-Identifier: MIT
// How far two right answers may differ in training: operations beside attention, and whole models.
// What attention adds: core/tolerance.h.
#pragma once

#include "core/tolerance.h"

namespace msa::train {

/// Error of a sum of n products whose magnitudes add up to `magnitude`, and of rounding it to the
/// type that it is stored in; `stores` 2 where it is added to what is there: cuBLASLt was off by
/// more than one rounding on an H100. Tensor cores cut what they align, which doubles a roundoff.
inline double sum_bound(double terms, double magnitude, Element stored, int stores = 1) {
    return (gamma(2 * terms) + stores * storage_roundoff(stored)) * magnitude;
}

/// How far a model that computes in another order, or in bf16, may be from one in float on the
/// host: shares of the loss in some twenty steps, and of the norm of a parameter's gradient.
struct ModelBounds {
    double loss, gradient;
};

/// Float: roundings, which steps of AdamW make larger, and a block more or less where two scores
/// tie: 1.2e-4 of the loss seen in ten steps on an H100. Bf16: every one of some twenty operations
/// between the input and a gradient rounds to 2^-9; independent roundings are 2^-9 sqrt(20) = 0.9 %
/// in all. Attention's gradients are differences of such numbers, up to ten times smaller.
constexpr ModelBounds model_bounds(Element element) {
    return element == Element::bf16 ? ModelBounds{0.01, 0.1} : ModelBounds{1e-3, 1e-3};
}

}  // namespace msa::train
