// SPDX-License-Identifier: MIT
#pragma once

namespace msa {

/// The number of threads of a loop: `asked`, or if that is 0 OpenMP's default (OMP_NUM_THREADS if
/// set, else one per processor that this process may run on).
int threads_or_all(int asked);

}  // namespace msa
