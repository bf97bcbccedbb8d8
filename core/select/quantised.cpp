// SPDX-License-Identifier: MIT
#include "core/select/quantised.h"

#include <algorithm>
#include <cmath>

namespace msa {

void quantise(std::span<float> values, int64_t bits) {
    if (bits >= kUnquantised || values.empty()) return;
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    const float least = *low, range = *high - *low;
    const auto steps = static_cast<float>((int64_t{1} << bits) - 1);
    if (!(range > 0)) return;
    for (float& value : values)
        value = least + std::nearbyint((value - least) / range * steps) / steps * range;
}

}  // namespace msa
