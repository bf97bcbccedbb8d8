// SPDX-License-Identifier: MIT
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace msa::experiments {

/// msa-fit-indexer: how good can an Index Branch get on my model?
int fit_indexer(std::span<const std::string> args, std::ostream& out, std::ostream& err);

}  // namespace msa::experiments
