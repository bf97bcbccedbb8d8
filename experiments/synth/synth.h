// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace msa::experiments {

/// msa-synth: activations of any size with planted attention structure.
int synth(std::span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace msa::experiments
