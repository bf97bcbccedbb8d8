// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/pretrain/options.h"

namespace msa::experiments::pretrain {

/// Ordered by size.
inline constexpr const char* kPresets[] = {"nano", "pilot", "large"};

/// The defaults of a preset. InputError naming all presets if there is none of that name.
PretrainOptions preset(const std::string& name);

}  // namespace msa::experiments::pretrain
