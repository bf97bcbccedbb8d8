// SPDX-License-Identifier: MIT
#include "experiments/pretrain/workers.h"

#include "core/error.h"
#include "core/train/trainer.h"
#include "experiments/driver/program.h"
#include "experiments/pretrain/training.h"
#include "gpu/train/cuda_ops.h"

namespace msa::experiments::pretrain {

void check_workers(const PretrainOptions& o, const Ranks& ranks) {
    const int workers = count_workers(o, ranks);
    require(o.sequences % workers == 0, "--sequences is ", o.sequences,
            ", must be a multiple of the ", workers, " workers that share them");
    if (workers > 1 && o.backend == "cuda")
        if (const Support support = train::cuda_workers(); !support.yes)
            throw UnsupportedError("several GPUs cannot train together: " + support.why_not);
}

void follow(const PretrainOptions& o, const Text& text, train::Model& model,
            const parallel::Group& workers) {
    const TrainingBatches batches(o, text, workers);
    train::Trainer trainer(model, o.training, workers);
    trainer.broadcast_state();
    while (trainer.step() < o.end()) {
        const Uploaded batch(model.ops().backend(), batches.at(trainer.step()));
        const train::StepReport report = trainer.gradient(batch.batch());
        if (!report.finite() || workers.any(stop_requested())) return;
        trainer.update(report);
    }
}

}  // namespace msa::experiments::pretrain
