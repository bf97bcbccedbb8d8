// SPDX-License-Identifier: MIT
#pragma once

namespace msa::cuda {

/// Was this build made for the current device?
bool kernels_run_here();

}  // namespace msa::cuda
