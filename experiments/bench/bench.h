// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace msa::experiments {

/// msa-bench: how fast is each stage of MSA on this machine?
int bench(std::span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace msa::experiments
