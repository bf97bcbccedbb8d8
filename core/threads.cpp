// SPDX-License-Identifier: MIT
#include "core/threads.h"

#include <omp.h>

namespace msa {

int threads_or_all(int asked) { return asked > 0 ? asked : omp_get_max_threads(); }

}  // namespace msa
