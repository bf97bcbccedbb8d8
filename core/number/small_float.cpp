// SPDX-License-Identifier: MIT
#include "core/number/small_float.h"

#include <algorithm>
#include <cmath>

namespace msa {

int SmallFloat::code(float magnitude) const {
    const float kept = std::min(magnitude, largest);
    // Fractions of 2^exponent; all subnormals share the smallest exponent. Rounding up to the next
    // power of 2 carries into the exponent's bits by itself.
    const int exponent = std::max(kept > 0 ? std::ilogb(kept) : 1 - bias, 1 - bias);
    const auto fractions =
        static_cast<int>(std::nearbyint(std::ldexp(kept, fraction_bits - exponent)));
    return (exponent + bias - 1) * (1 << fraction_bits) + fractions;
}

float SmallFloat::magnitude(int code) const {
    const int whole = 1 << fraction_bits, exponent = code / whole, fraction = code % whole;
    const int fractions = exponent > 0 ? whole + fraction : fraction;
    return std::ldexp(static_cast<float>(fractions), std::max(exponent, 1) - bias - fraction_bits);
}

}  // namespace msa
