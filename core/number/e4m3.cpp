// SPDX-License-Identifier: MIT
#include "core/number/e4m3.h"

#include <cmath>
#include <limits>

#include "core/number/small_float.h"

namespace msa {
namespace {

constexpr uint8_t kSign = 0x80, kNan = 0x7F;
static_assert(kE4m3.largest == E4m3::kLargest);

}  // namespace

E4m3::E4m3(float value) {
    const uint8_t sign = std::signbit(value) ? kSign : 0;
    bits =
        static_cast<uint8_t>(sign | (std::isnan(value) ? int{kNan} : kE4m3.code(std::fabs(value))));
}

E4m3::operator float() const {
    const float sign = (bits & kSign) != 0 ? -1.0F : 1.0F;
    if ((bits & kNan) == kNan) return std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
    return sign * kE4m3.magnitude(bits & kNan);
}

}  // namespace msa
