// SPDX-License-Identifier: MIT
// Conversion between float and the element types of stored operands; no other code converts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace msa {

/// The largest finite value of f32, f16, bf16, e4m3 or int8.
double largest_value(Element);

/// Unit roundoff of a value stored in f32, f16, bf16 or e4m3; 0 of int8, whose steps are equal.
constexpr double storage_roundoff(Element element) {
    switch (element) {
        case Element::f16: return 0x1p-11;
        case Element::bf16: return 0x1p-8;
        case Element::e4m3: return 0x1p-4;
        case Element::int8: return 0;
        default: return 0x1p-24;
    }
}

/// Half of the smallest positive value of f32, f16, bf16, e4m3 or int8. It bounds the absolute
/// rounding error near 0; elsewhere storage_roundoff bounds the relative one.
constexpr double storage_floor(Element element) {
    switch (element) {
        case Element::f16: return 0x1p-25;
        case Element::bf16: return 0x1p-134;
        case Element::e4m3: return 0x1p-10;
        case Element::int8: return 0.5;
        default: return 0x1p-150;
    }
}

/// Bound on the storage error of a value of at most `size`.
constexpr double stored_bound(Element element, double size) {
    return storage_roundoff(element) * size + storage_floor(element);
}

/// The nearest values of `element` (f32, f16, bf16, e4m3 or int8), ties to even, into
/// values.size() * element_bytes(element) bytes. f16 beyond its range becomes infinite; e4m3 and
/// int8 take their largest value. NaN stays NaN, but for int8, which has none: 0.
void encode(std::span<const float> values, Element element, void* to);

/// Exactly the values stored at `from`.
void decode(const void* from, Element element, std::span<float> values);

/// Each value becomes the nearest of `element`: encode, then decode.
void round_to(Element element, std::span<float> values);

}  // namespace msa
