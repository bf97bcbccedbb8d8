// SPDX-License-Identifier: MIT
// The 8-bit floating-point storage type of operands.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace msa {

/// Sign, 4 bits of exponent (bias 7), 3 of fraction; subnormals of 2^-9, no infinities, NaN is 0x7F
/// of either sign. Source: OCP 8-bit floating point specification (OFP8), E4M3.
struct E4m3 {
    static constexpr float kLargest = 448;
    uint8_t bits = 0;

    E4m3() = default;
    /// The nearest value, ties to even. Larger values and infinities become kLargest. NaN stays
    /// NaN.
    explicit E4m3(float value);
    explicit operator float() const;
};
using e4m3 = E4m3;  // as all other code calls it, beside f16 and bf16
static_assert(sizeof(e4m3) == 1);

template <>
struct ElementOf<e4m3> {
    static constexpr Element value = Element::e4m3;
};

}  // namespace msa
