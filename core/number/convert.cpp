// SPDX-License-Identifier: MIT
#include "core/number/convert.h"

#include <limits>
#include <type_traits>

#include "core/number/e4m3.h"
#include "core/number/half.h"
#include "core/number/int8.h"

namespace msa {
namespace {

/// Calls `with` with a value of the element's C++ type.
template <typename With>
void as_type(Element element, const With& with) {
    switch (element) {
        case Element::f32: return with(float{});
        case Element::f16: return with(f16{});
        case Element::bf16: return with(bf16{});
        case Element::e4m3: return with(e4m3{});
        case Element::int8: return with(Int8{});
        default: MSA_CHECK(false && "no element of operands");
    }
}

}  // namespace

double largest_value(Element element) {
    double largest = 0;
    as_type(element, [&]<typename T>(T) {
        if constexpr (std::is_same_v<T, e4m3> || std::is_same_v<T, Int8>)
            largest = T::kLargest;
        else
            largest = double{static_cast<float>(std::numeric_limits<T>::max())};
    });
    return largest;
}

void encode(std::span<const float> values, Element element, void* to) {
    as_type(element, [&]<typename T>(T) {
        auto* const stored = static_cast<T*>(to);
        const auto count = std::ssize(values);
#pragma omp parallel for
        for (int64_t i = 0; i < count; ++i) stored[i] = static_cast<T>(values.data()[i]);
    });
}

void decode(const void* from, Element element, std::span<float> values) {
    as_type(element, [&]<typename T>(T) {
        const auto* const stored = static_cast<const T*>(from);
        const auto count = std::ssize(values);
#pragma omp parallel for
        for (int64_t i = 0; i < count; ++i) values.data()[i] = static_cast<float>(stored[i]);
    });
}

void round_to(Element element, std::span<float> values) {
    as_type(element, [&]<typename T>(T) {
        const auto count = std::ssize(values);
#pragma omp parallel for
        for (int64_t i = 0; i < count; ++i)
            values.data()[i] = static_cast<float>(static_cast<T>(values.data()[i]));
    });
}

}  // namespace msa
