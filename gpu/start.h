// SPDX-License-Identifier: MIT
// Whether, and on which device, the backend can start.
#pragma once

#include <string>

#include "gpu/runtime.h"

namespace msa::cuda {

/// "13.0", of a number that CUDA gives.
std::string version(int number);
/// Can anything run here at all?
Support usable();
/// Device `ordinal`, which is chosen. InputError where there is none, UnsupportedError where it
/// cannot run the kernels of this build.
Device require_device(int ordinal);

}  // namespace msa::cuda
