// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <iosfwd>

#include "core/io/activations.h"

namespace msa::experiments {

/// One line on `err` where the model's attention is not the plain causal attention that every
/// program computes; nothing else.
void warn_of_own_attention(const std::filesystem::path& file, const io::LayerInfo&,
                           std::ostream& err);

}  // namespace msa::experiments
