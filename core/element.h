// SPDX-License-Identifier: MIT
// Where the elements of a tensor lie, and what type they have.
#pragma once

#include <cstdint>

namespace msa {

/// Where memory lives; a backend reads and writes views of its own space only.
enum class Space : uint8_t { host, device };

/// Element types that operands may be stored in.
enum class Element : uint8_t { f32, f64, f16, bf16, e4m3, int8, i32 };

const char* to_string(Space);
const char* to_string(Element);

/// Bytes of one element.
int64_t element_bytes(Element);

/// Element of a C++ type; specialised for f16 and bf16 in core/number/half.h.
template <typename T>
struct ElementOf;
template <>
struct ElementOf<float> {
    static constexpr Element value = Element::f32;
};
template <>
struct ElementOf<double> {
    static constexpr Element value = Element::f64;
};
template <>
struct ElementOf<int32_t> {
    static constexpr Element value = Element::i32;
};

}  // namespace msa
