// SPDX-License-Identifier: MIT
#include "core/train/trainer.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace msa::train {
namespace {

/// Has no state.
const parallel::Group& alone() {
    static const parallel::Group one;
    return one;
}

}  // namespace

void TrainingOptions::validate() const {
    const auto within = [this](const char* name, int64_t value) {
        require(value >= 0 && value <= steps, name, " is ", value,
                ", must be from 0 to steps = ", steps);
    };
    require(steps >= 1, "steps is ", steps, ", must be at least 1");
    within("warmup_steps", warmup_steps);
    within("lr_warmup", lr_warmup);
    within("attach_from", attach_from);
    within("attach_until", attach_until);
    require(lr >= 0 && std::isfinite(lr), "lr is ", lr, ", must be finite and not negative");
    require(lr_floor >= 0 && lr_floor <= 1, "lr_floor is ", lr_floor, ", must be from 0 to 1");
    require(clip.norm >= 0, "clip is ", clip.norm, ", must not be negative");
}

double learning_rate(const TrainingOptions& o, int64_t step) {
    if (step < o.lr_warmup)
        return o.lr * static_cast<double>(step + 1) / static_cast<double>(o.lr_warmup);
    const double falling =
        cosine_rate(1, step - o.lr_warmup, std::max<int64_t>(1, o.steps - o.lr_warmup));
    return o.lr * (o.lr_floor + (1 - o.lr_floor) * falling);
}

bool StepReport::finite() const {
    return std::isfinite(losses.lm) && std::isfinite(norms.all) &&
           std::all_of(losses.kl.begin(), losses.kl.end(),
                       [](double kl) { return std::isfinite(kl); });
}

Trainer::Trainer(Model& model, const TrainingOptions& options) : Trainer(model, options, alone()) {}

void Trainer::broadcast_state() {
    if (workers_.size() == 1) return;
    Backend& backend = model_.ops().backend();
    Weights& weights = model_.weights();
    for (const View<float, 1> list : {weights.values(), weights.first(), weights.second()}) {
        Tensor<float, 1> host = backend.download(list);
        const std::span values(host.data(), static_cast<size_t>(host.size()));
        workers_.broadcast(std::as_writable_bytes(values));
        backend.copy(list.data(), list.space(), host.data(), Space::host,
                     list.size() * int64_t{sizeof(float)});
    }
    weights.update_copy();
    workers_.broadcast(std::as_writable_bytes(std::span(&step_, 1)));
}

Batch Trainer::share_of_step(const Batch& batch) {
    Batch share = batch;
    if (workers_.size() == 1) return share;
    double counts[] = {static_cast<double>(model_.count_targets(batch)),
                       static_cast<double>(batch.tokens.size())};
    workers_.all_reduce(counts);
    share.step_targets = static_cast<int64_t>(counts[0]);
    share.step_tokens = static_cast<int64_t>(counts[1]);
    return share;
}

void Trainer::sum(Losses& losses) {
    std::vector<double> parts{losses.lm};
    parts.insert(parts.end(), losses.kl.begin(), losses.kl.end());
    workers_.all_reduce(parts);
    losses = {.lm = parts.front(), .kl = {parts.begin() + 1, parts.end()}};
}

StepReport Trainer::gradient(const Batch& batch) {
    StepReport report{.step = step_, .lr = learning_rate(o_, step_)};
    const Batch share = share_of_step(batch);
    model_.weights().clear_gradient();
    report.losses = model_.forward_backward(share, o_.sparse(step_), o_.attached(step_));
    // All workers are through their passes here, or one has failed and no one goes on.
    sum(report.losses);
    model_.ops().sum_over(workers_, model_.weights().gradient());
    report.norms = model_.weights().gradient_norms();
    workers_.require_same(report.norms.all,
                          concat("sums of the gradient of step ", step_, ": its norm"));
    return report;
}

void Trainer::update(const StepReport& report) {
    model_.weights().step(o_.adamw, ++step_, report.lr, report.norms, o_.clip, o_.freeze_index);
}

}  // namespace msa::train
