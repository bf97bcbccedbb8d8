// SPDX-License-Identifier: MIT
#include "core/threads.h"

#include <omp.h>
#include <pthread.h>

namespace msa {

int threads_or_all(int asked) { return asked > 0 ? asked : omp_get_max_threads(); }

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
