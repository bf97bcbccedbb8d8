// SPDX-License-Identifier: MIT
// Steps of training: the gradient of a batch, clipping, AdamW, and what changes along the way: the
// learning rate, and the end of the indexer's warm-up (sec:method-training).
#pragma once

#include "core/train/model.h"

namespace msa::train {

struct TrainingOptions {
    int64_t steps = 0;
    /// First steps in which every layer attends to all visible keys and the KL loss is over them
    /// (T_warm); later, layers with MSA attend to the blocks that are selected.
    int64_t warmup_steps = 0;
    double rate = 1e-3;       // learning rate at its highest
    int64_t rate_warmup = 0;  // first steps, in which it rises linearly
    double rate_floor = 0.1;  // share of it that the cosine ends at
    AdamW adamw{.beta2 = 0.95, .weight_decay = 0.1};
    Clipping clip{};

    bool sparse(int64_t step) const { return step >= warmup_steps; }
    /// Throws InputError naming the value and the rule it breaks.
    void validate() const;
};

/// Learning rate of step `step`, from 0: rate * (step + 1) / rate_warmup in the first rate_warmup
/// steps, then down to rate * rate_floor along half a cosine.
double learning_rate(const TrainingOptions& options, int64_t step);

/// What one step says.
struct StepReport {
    int64_t step = 0;
    Losses losses{};
    Weights::Norms norms{};
    double rate = 0;
    /// Are losses and norms finite?
    bool finite() const;
};

/// Steps are in two halves, so that between them stand weights whose loss is known to be finite:
/// the ones to keep. Of several workers each has a trainer, whose calls are collective; its batches
/// are its share, its reports those of the whole step.
class Trainer {
public:
    Trainer(Model& model, const TrainingOptions& options);
    /// `workers` must outlive this.
    Trainer(Model& model, const TrainingOptions& options, const parallel::Group& workers)
        : model_(model), o_(options), workers_(workers) {}

    int64_t step() const { return step_; }  // steps done
    /// Goes on from here; the model has the weights and moments.
    void resume(int64_t step) { step_ = step; }
    /// Every worker goes on from where the first one is, with its weights and moments.
    void follow_first();

    /// Losses and gradient of the next step. SystemError where workers have different bits of it,
    /// as on processors of several kinds: their weights would part.
    StepReport gradient(const Batch& batch);
    /// Moves the weights along it.
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
