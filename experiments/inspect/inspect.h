// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace msa::experiments {

/// msa-inspect: is this file valid, and what is in it?
int inspect(std::span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace msa::experiments
