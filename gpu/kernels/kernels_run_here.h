// SPDX-License-Identifier: MIT
#pragma once

namespace msa::cuda {

/// Whether this build's kernels run on the current device.
bool kernels_run_here();

}  // namespace msa::cuda
