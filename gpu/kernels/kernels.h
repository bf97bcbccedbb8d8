// SPDX-License-Identifier: MIT
// Launchers of the kernels, one stem per operation as in core/cpu. Contracts: core/backend.h;
// arguments are checked before, memory is the device's, calls are asynchronous.
//   <op>_any   plain and readable, compute capability 8.0 or later, any size that Problem allows
#pragma once

#include "core/backend.h"
#include "gpu/runtime.h"

namespace msa::cuda {

/// Was this build made for the current device?
bool kernels_run_here();

void select_blocks_any(const Call&, const SelectionRule&, View<const float, 3> scores,
                       View<int32_t, 3> ids);

}  // namespace msa::cuda
