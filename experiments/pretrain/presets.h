// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/pretrain/options.h"

namespace msa::experiments::pretrain {

/// In the order of their size.
inline constexpr const char* kPresets[] = {"nano", "pilot", "large"};

/// The defaults of a preset. InputError naming all where there is none of that name.
PretrainOptions preset(const std::string& name);

}  // namespace msa::experiments::pretrain
