// SPDX-License-Identifier: MIT
// Bounds on the difference between two correct results in training: operations other than
// attention, and whole models. Attention: core/tolerance.h.
#pragma once

#include "core/tolerance.h"

namespace msa::train {

/// Error of a sum of n products whose magnitudes add up to `magnitude`, and of rounding it to the
/// type that it is stored in. `stores` is 2 if it is added to a stored value: cuBLASLt was off by
/// more than one rounding on an H100. Tensor cores truncate when they align, which doubles a
/// roundoff.
inline double sum_bound(double terms, double magnitude, Element stored, int stores = 1) {
    return (gamma(2 * terms) + stores * storage_roundoff(stored)) * magnitude;
}

/// Relative difference allowed between a model that computes in another order or in bf16 and one in
/// float on the host: of the loss over some twenty steps, and of a parameter's gradient norm.
struct ModelBounds {
    double loss, gradient;
};

/// Float: roundings, which steps of AdamW enlarge, and a different block where two scores tie;
/// 1.2e-4 of the loss was seen in ten steps on an H100. Bf16: each of some twenty operations
/// between the input and a gradient rounds to 2^-9, which makes 2^-9 sqrt(20) = 0.9 % if roundings
/// are independent. Attention's gradients are differences of such numbers, up to ten times smaller.
constexpr ModelBounds model_bounds(Element element) {
    return element == Element::bf16 ? ModelBounds{0.01, 0.1} : ModelBounds{1e-3, 1e-3};
}

}  // namespace msa::train
