// SPDX-License-Identifier: MIT
#pragma once

namespace msa::cuda {

/// The compute capability, 10 major + minor, that this build's kernels for the current device were
/// compiled for; 0 if none runs there.
int kernels_run_here();

}  // namespace msa::cuda
