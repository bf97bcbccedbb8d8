// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace msa::experiments {

/// msa-cost: what does MSA cost, and in which loop order?
int cost(std::span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace msa::experiments
