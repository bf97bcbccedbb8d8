// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace msa::experiments {

/// msa-compare: which selector keeps most of the attention at an equal budget, and at what cost?
int compare(std::span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace msa::experiments
