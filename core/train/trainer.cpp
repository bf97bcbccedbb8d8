// SPDX-License-Identifier: MIT
#include "core/train/trainer.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace msa::train {

void TrainingOptions::validate() const {
    const auto within = [this](const char* name, int64_t value) {
        require(value >= 0 && value <= steps, name, " is ", value,
                ", must be from 0 to steps = ", steps);
    };
    require(steps >= 1, "steps is ", steps, ", must be at least 1");
    within("warmup_steps", warmup_steps);
    within("rate_warmup", rate_warmup);
    require(rate >= 0 && std::isfinite(rate), "rate is ", rate,
            ", must be finite and not negative");
    require(rate_floor >= 0 && rate_floor <= 1, "rate_floor is ", rate_floor,
            ", must be from 0 to 1");
    require(clip >= 0, "clip is ", clip, ", must not be negative");
}

double learning_rate(const TrainingOptions& o, int64_t step) {
    if (step < o.rate_warmup)
        return o.rate * static_cast<double>(step + 1) / static_cast<double>(o.rate_warmup);
    const double falling =
        cosine_rate(1, step - o.rate_warmup, std::max<int64_t>(1, o.steps - o.rate_warmup));
    return o.rate * (o.rate_floor + (1 - o.rate_floor) * falling);
}

bool StepReport::finite() const {
    return std::isfinite(losses.lm) && std::isfinite(norms.all) &&
           std::all_of(losses.kl.begin(), losses.kl.end(),
                       [](double kl) { return std::isfinite(kl); });
}

StepReport Trainer::gradient(const Batch& batch) {
    StepReport report{.step = step_, .rate = learning_rate(o_, step_)};
    model_.weights().clear_gradient();
    report.losses = model_.forward_backward(batch, o_.sparse(step_));
    report.norms = model_.weights().gradient_norms();
    return report;
}

void Trainer::update(const StepReport& report) {
    model_.weights().step(o_.adamw, ++step_, report.rate, report.norms.all, o_.clip);
}

}  // namespace msa::train
