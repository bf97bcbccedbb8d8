// SPDX-License-Identifier: MIT
// AdamW (Loshchilov and Hutter 2019), the update of torch.optim.AdamW, and its cosine schedule.
#pragma once

#include <cstdint>
#include <span>

namespace msa {

struct AdamW {
    double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
    double weight_decay = 0.01;  // decoupled: w -= lr * weight_decay * w

    /// One update in place; `step` counts from 1. All spans have one size; first and second are the
    /// moments, zero before the first step.
    void update(int64_t step, double lr, std::span<float> weights, std::span<const float> gradient,
                std::span<float> first, std::span<float> second) const;
};

/// Learning rate of step `step` of `steps`, from 0: peak * (1 + cos(pi step / steps)) / 2.
double cosine_rate(double peak, int64_t step, int64_t steps);

}  // namespace msa
