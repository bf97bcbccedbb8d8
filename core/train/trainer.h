// SPDX-License-Identifier: MIT
// Training steps: the gradient of a batch, clipping, AdamW, the learning rate schedule, and the end
// of the indexer's warm-up (sec:method-training).
#pragma once

#include "core/train/model.h"

namespace msa::train {

struct TrainingOptions {
    int64_t steps = 0;
    /// First steps (T_warm), in which every layer attends to all visible keys and the KL loss is
    /// over them. Later, layers with MSA attend to the selected blocks.
    int64_t warmup_steps = 0;
    double lr = 1e-3;       // learning rate at its highest
    int64_t lr_warmup = 0;  // first steps, over which it rises linearly
    double lr_floor = 0.1;  // the cosine ends at this share of it
    AdamW adamw{.beta2 = 0.95, .weight_decay = 0.1};
    Clipping clip{};
    /// Steps in which a KL loss that is not detached reaches the backbone: from `attach_from` on,
    /// and before `attach_until` unless that is 0.
    int64_t attach_from = 0, attach_until = 0;
    bool freeze_index = false;  // the Index Branch keeps its first weights

    bool sparse(int64_t step) const { return step >= warmup_steps; }
    bool attached(int64_t step) const {
        return step >= attach_from && (attach_until == 0 || step < attach_until);
    }
    /// Throws InputError naming the value and the rule it breaks.
    void validate() const;
};

/// Learning rate of step `step`, from 0: lr * (step + 1) / lr_warmup in the first lr_warmup
/// steps, then down to lr * lr_floor along half a cosine.
double learning_rate(const TrainingOptions& options, int64_t step);

/// Losses and norms of one step.
struct StepReport {
    int64_t step = 0;
    Losses losses{};
    Weights::Norms norms{};
    double lr = 0;
    /// Whether losses and norms are finite.
    bool finite() const;
};

/// A step has two halves. Between them the weights are known to have a finite loss, so that is when
/// to save them. With several workers, each has a trainer and the calls are collective: a trainer's
/// batches are its worker's share, its reports are of the whole step.
class Trainer {
public:
    Trainer(Model& model, const TrainingOptions& options);
    /// `workers` must outlive this.
    Trainer(Model& model, const TrainingOptions& options, const parallel::Group& workers)
        : model_(model), o_(options), workers_(workers) {}

    int64_t step() const { return step_; }  // steps done
    /// Continues from this step; the model already has the weights and moments.
    void resume(int64_t step) { step_ = step; }
    /// Collective: all workers take the first one's step, weights and moments.
    void broadcast_state();

    /// Computes losses and gradient of the next step. SystemError if workers have different bits,
    /// as on processors of different kinds, since their weights would diverge.
    StepReport gradient(const Batch& batch);
    /// Updates the weights with that gradient.
    void update(const StepReport& report);

private:
    Batch share_of_step(const Batch& batch);
    void sum(Losses& losses);

    Model& model_;
    const TrainingOptions& o_;
    const parallel::Group& workers_;
    int64_t step_ = 0;
};

}  // namespace msa::train
