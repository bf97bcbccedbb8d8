// SPDX-License-Identifier: MIT
#pragma once

namespace msa {

/// The threads of a loop that was asked for `asked` of them: so many, or for 0 as many as OpenMP
/// starts by itself, OMP_NUM_THREADS where it is set, else one for each processor that this process
/// may run on.
int threads_or_all(int asked);

}  // namespace msa
