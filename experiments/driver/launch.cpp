// SPDX-License-Identifier: MIT
#include "experiments/driver/launch.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "core/threads.h"

namespace msa::experiments {
namespace {

/// The number that the first set variable begins with, or 0: "2(x3)" is 2.
int64_t first_of(std::initializer_list<const char*> variables) {
    for (const char* name : variables)
        if (const char* const value = std::getenv(name); value != nullptr)
            return std::max<int64_t>(0, std::strtoll(value, nullptr, 10));
    return 0;
}

/// Those of this host that may run any of its processes: a launcher may have bound each to its own.
int processors() {
    cpu_set_t mine, any;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    std::memset(&any, 0xff, sizeof any);
    if (sched_setaffinity(0, sizeof any, &any) != 0) return CPU_COUNT(&mine);
    sched_getaffinity(0, sizeof any, &any);
    sched_setaffinity(0, sizeof mine, &mine);
    return CPU_COUNT(&any);
}

}  // namespace

int64_t launched_rank() {
    return first_of({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"});
}

int64_t launched_number() {
    return launched_rank() + first_of({"SLURM_ARRAY_TASK_ID", "PARALLEL_SEQ"});
}

int launched_threads() {
    const int all = threads_or_all(0);
    const int64_t of_host =
        first_of({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE"});
    // Who sets OMP_NUM_THREADS means every process.
    if (of_host <= 1 || std::getenv("OMP_NUM_THREADS") != nullptr) return all;
    return static_cast<int>(std::clamp<int64_t>(processors() / of_host, 1, all));
}

}  // namespace msa::experiments
