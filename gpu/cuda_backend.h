// SPDX-License-Identifier: MIT
// The CUDA backend: the operations of core/backend.h on one NVIDIA GPU of compute capability 8.0 or
// later. Operands float or bfloat16, of index_scores and index_select also e4m3 (a scale
// of the whole tensor goes into index_scale), sums in float, outputs float or like the operands.
#pragma once

#include <functional>
#include <optional>

#include "core/registry.h"

namespace msa {

/// Announces "cuda" to make_backend and list_backends, usable or with the reason why not: no CUDA
/// in this build, no driver or too old a one, no device, too old a device. Repeating is harmless.
void register_cuda_backend();

/// Seconds that `work`, calls of a cuda backend, takes on the device's own clock, whose caches are
/// full of other data with nothing to be written back. Nothing for another backend.
std::optional<double> cuda_cold_seconds(Backend&, const std::function<void()>& work);

}  // namespace msa
