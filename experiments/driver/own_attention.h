// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <iosfwd>

#include "core/io/activations.h"

namespace msa::experiments {

/// What a program computes of the model's attention: plain causal attention, or that with the
/// layer's window, soft cap and sinks.
enum class Computed : uint8_t { plain, with_window_cap_and_sinks };

/// One line on `err` where the model's attention is not what the program computes; nothing else.
void warn_of_own_attention(const std::filesystem::path& file, const io::LayerInfo&, Computed,
                           std::ostream& err);

}  // namespace msa::experiments
