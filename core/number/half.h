// SPDX-License-Identifier: MIT
// The 16-bit storage types, from Eigen (round to nearest even, NaN kept).
#pragma once

#include <Eigen/Core>

#include "core/tensor.h"

namespace msa {

using f16 = Eigen::half;
using bf16 = Eigen::bfloat16;

template <>
struct ElementOf<f16> {
    static constexpr Element value = Element::f16;
};
template <>
struct ElementOf<bf16> {
    static constexpr Element value = Element::bf16;
};

}  // namespace msa
