// SPDX-License-Identifier: MIT
#include "core/e4m3.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace msa {
namespace {

constexpr int kBias = 7, kFractionBits = 3, kFractions = 1 << kFractionBits;
constexpr uint8_t kSign = 0x80, kNan = 0x7F;

}  // namespace

E4m3::E4m3(float value) {
    const uint8_t sign = std::signbit(value) ? kSign : 0;
    if (std::isnan(value)) {
        bits = sign | kNan;
        return;
    }
    const float magnitude = std::min(std::fabs(value), kLargest);
    // Fractions of 2^exponent; all subnormals share the smallest exponent. Rounding up to the next
    // power of 2 carries into the exponent's bits by itself.
    const int exponent = std::max(magnitude > 0 ? std::ilogb(magnitude) : 1 - kBias, 1 - kBias);
    const auto fractions =
        static_cast<int>(std::nearbyint(std::ldexp(magnitude, kFractionBits - exponent)));
    bits = static_cast<uint8_t>(sign | ((exponent + kBias - 1) * kFractions + fractions));
}

E4m3::operator float() const {
    const int exponent = (bits & kNan) / kFractions, fraction = bits % kFractions;
    const float sign = (bits & kSign) != 0 ? -1.0F : 1.0F;
    if ((bits & kNan) == kNan) return std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
    const int fractions = exponent > 0 ? kFractions + fraction : fraction;
    return sign *
           std::ldexp(static_cast<float>(fractions), std::max(exponent, 1) - kBias - kFractionBits);
}

}  // namespace msa
