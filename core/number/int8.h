// SPDX-License-Identifier: MIT
// 8-bit integers, in which operands of the Index Branch may be stored. Their scales:
// core/number/operand_scales.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/tensor.h"

namespace msa {

/// From -127 to 127, symmetric about 0. Source: absmax quantisation, arXiv 2208.07339.
struct Int8 {
    static constexpr float kLargest = 127;
    int8_t value = 0;

    Int8() = default;
    /// The nearest, ties to even; beyond kLargest, infinities too: kLargest. Of NaN: 0.
    explicit Int8(float x)
        : value(std::isnan(x)
                    ? int8_t{0}
                    : static_cast<int8_t>(std::nearbyint(std::clamp(x, -kLargest, kLargest)))) {}
    explicit operator float() const { return static_cast<float>(value); }
};
static_assert(sizeof(Int8) == 1);

template <>
struct ElementOf<Int8> {
    static constexpr Element value = Element::int8;
};

}  // namespace msa
