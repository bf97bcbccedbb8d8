// SPDX-License-Identifier: MIT
#include "experiments/driver/group.h"

#include <algorithm>

#include "experiments/driver/launch.h"

namespace msa::experiments {

int count_workers(const ComputeOptions& o, const Ranks& ranks) {
    return std::max(ranks.size(), o.count_devices());
}

void run_group(const ComputeOptions& o, const Ranks& ranks,
               const std::function<void(const parallel::Group&)>& work) {
    if (ranks.size() == 1) {
        parallel::run_group(o.count_devices(), work);
        return;
    }
    work(ranks);
}

BackendOptions backend_of(const ComputeOptions& o, const parallel::Group& worker) {
    BackendOptions own = o.backend_options;
    if (!o.devices.empty()) {
        const size_t at = o.devices.size() == 1 ? 0 : static_cast<size_t>(worker.rank());
        own.device = static_cast<int>(o.devices[at]);
    }
    const int all = own.threads > 0 ? own.threads : launched_threads();
    own.threads = std::max(1, all / o.count_devices());
    return own;
}

}  // namespace msa::experiments
