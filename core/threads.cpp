// SPDX-License-Identifier: MIT
#include "core/threads.h"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <thread>

#include "core/error.h"

namespace msa {

int most_threads() {
    return static_cast<int>(std::max(64U, 4 * std::thread::hardware_concurrency()));
}

int threads_or_all(int asked) {
    if (asked > 0) return asked;
    const int all = omp_get_max_threads();
    require(all <= most_threads(), "OMP_NUM_THREADS is ", all, ", must be at most ", most_threads(),
            " on this machine");
    return all;
}

#if !defined(__clang__)
namespace {

/// libgomp keeps a loop's threads for the next one, and a child of fork() would wait for those of
/// its parent, which it has not got. The thread that forks ends its own before; parent and child
/// make new ones. LLVM's runtime does so by itself.
[[maybe_unused]] const int kRenewed = pthread_atfork(
    [] { omp_pause_resource(omp_pause_soft, omp_get_initial_device()); }, nullptr, nullptr);

}  // namespace
#endif

}  // namespace msa
