// SPDX-License-Identifier: MIT
#include "core/indexer/adamw.h"

#include <cmath>
#include <numbers>

#include "core/error.h"

namespace msa {

void AdamW::update(int64_t step, double lr, std::span<float> weights,
                   std::span<const float> gradient, std::span<float> first,
                   std::span<float> second) const {
    MSA_CHECK(step >= 1 && gradient.size() == weights.size());
    MSA_CHECK(first.size() == weights.size() && second.size() == weights.size());
    const double count = static_cast<double>(step);
    const double correct1 = 1 - std::pow(beta1, count), correct2 = 1 - std::pow(beta2, count);
    for (size_t i = 0; i < weights.size(); ++i) {
        const double g = double{gradient[i]};
        const double m = beta1 * double{first[i]} + (1 - beta1) * g;
        const double v = beta2 * double{second[i]} + (1 - beta2) * g * g;
        first[i] = static_cast<float>(m);
        second[i] = static_cast<float>(v);
        const double move = m / correct1 / (std::sqrt(v / correct2) + epsilon);
        weights[i] = static_cast<float>(double{weights[i]} * (1 - lr * weight_decay) - lr * move);
    }
}

double cosine_rate(double peak, int64_t step, int64_t steps) {
    const double share = static_cast<double>(step) / static_cast<double>(steps);
    return peak * (1 + std::cos(std::numbers::pi * share)) / 2;
}

}  // namespace msa
