// SPDX-License-Identifier: MIT
// The fast CPU implementation: float, OpenMP over query tiles, one file per operation.
#pragma once

#include <memory>

#include "core/backend.h"

namespace msa {

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions&);

}  // namespace msa
