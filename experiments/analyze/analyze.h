// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace msa::experiments {

/// msa-analyze: what does MSA select on my activations, and what does it lose?
int analyze(std::span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace msa::experiments
