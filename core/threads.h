// SPDX-License-Identifier: MIT
#pragma once

namespace msa {

/// The most threads of a loop: where a system starts no more, OpenMP ends the process.
int most_threads();

/// The number of threads of a loop: `asked`, or if that is 0 OpenMP's default (OMP_NUM_THREADS if
/// set, else one per processor that this process may run on). InputError if the default is more
/// than most_threads().
int threads_or_all(int asked);

}  // namespace msa
