// SPDX-License-Identifier: MIT
#include "experiments/driver/workers.h"

#include <algorithm>

namespace msa::experiments {
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

}  // namespace

int count_workers(const ComputeOptions& o, const Ranks& ranks) {
    return std::max(ranks.count(), o.count_devices());
}

void work_together(const ComputeOptions& o, const Ranks& ranks,
                   const std::function<void(train::Workers&)>& work) {
    if (ranks.count() == 1) {
        train::work_together(o.count_devices(), work);
        return;
    }
    Rank rank(ranks);
    work(rank);
}

BackendOptions backend_of(const ComputeOptions& o, const train::Workers& worker) {
    BackendOptions own = o.backend_options;
    if (!o.devices.empty()) {
        const size_t at = o.devices.size() == 1 ? 0 : static_cast<size_t>(worker.index());
        own.device = static_cast<int>(o.devices[at]);
    }
    const int all = own.threads > 0 ? own.threads : Ranks::world().threads();
    own.threads = std::max(1, all / o.count_devices());
    return own;
}

}  // namespace msa::experiments
