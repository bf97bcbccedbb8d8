// SPDX-License-Identifier: MIT
#include "experiments/pretrain/workers.h"

#include <algorithm>

#include "core/error.h"
#include "core/train/trainer.h"
#include "experiments/driver/program.h"
#include "experiments/driver/ranks.h"
#include "experiments/pretrain/training.h"
#include "gpu/train/cuda_ops.h"

namespace msa::experiments::pretrain {
namespace {

/// A rank of MPI. A rank that fails ends all others (Ranks::end).
class Rank final : public train::Workers {
public:
    explicit Rank(const Ranks& ranks) : Workers(ranks.rank(), ranks.count()), ranks_(ranks) {}

    void sum(std::span<float> values) override { ranks_.sum(values); }
    void sum(std::span<double> values) override { ranks_.sum(values); }
    void from_first(std::span<std::byte> bytes) override { ranks_.from_first(bytes); }
    void from_all(std::span<const std::byte> mine, std::span<std::byte> all) override {
        ranks_.from_all(mine, all);
    }

private:
    const Ranks& ranks_;
};

int count_devices(const PretrainOptions& o) {
    return std::max(1, static_cast<int>(o.devices.size()));
}

}  // namespace

int count_workers(const PretrainOptions& o) {
    const int ranks = Ranks::world().count(), devices = count_devices(o);
    require(ranks == 1 || devices == 1, "--devices names ", devices, " GPUs, and there are ", ranks,
            " ranks: one of the two spreads a run");
    const int workers = std::max(ranks, devices);
    require(o.sequences % workers == 0, "--sequences is ", o.sequences,
            ", must be a multiple of the ", workers, " workers that share them");
    if (workers > 1 && o.backend == "cuda")
        if (const Support support = train::cuda_workers(); !support.yes)
            throw UnsupportedError("several GPUs cannot train together: " + support.why_not);
    return workers;
}

void work_together(const PretrainOptions& o, const std::function<void(train::Workers&)>& work) {
    if (Ranks::world().count() == 1) {
        train::work_together(count_devices(o), work);
        return;
    }
    Rank rank(Ranks::world());
    work(rank);
}

BackendOptions backend_of(const PretrainOptions& o, const train::Workers& worker) {
    BackendOptions own = o.backend_options;
    if (!o.devices.empty()) {
        const size_t at = o.devices.size() == 1 ? 0 : static_cast<size_t>(worker.index());
        own.device = static_cast<int>(o.devices[at]);
    }
    const int all = own.threads > 0 ? own.threads : Ranks::world().threads();
    own.threads = std::max(1, all / count_devices(o));
    return own;
}

void follow(const PretrainOptions& o, const Text& text, train::Model& model,
            train::Workers& workers) {
    const TrainingBatches batches(o, text, workers);
    train::Trainer trainer(model, o.training, workers);
    trainer.follow_first();
    while (trainer.step() < o.training.steps) {
        const Uploaded batch(model.ops().backend(), batches.at(trainer.step()));
        const train::StepReport report = trainer.gradient(batch.batch());
        if (!report.finite() || workers.any(stop_requested())) return;
        trainer.update(report);
    }
}

}  // namespace msa::experiments::pretrain
