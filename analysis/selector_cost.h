// SPDX-License-Identifier: MIT
// What it costs to decide: the arithmetic of a selector's scores (a multiply-add is 2) and the
// bytes of keys, or of what stands for them, that it reads, in 2-byte elements. Each query is
// charged for all it needs, as if it came alone (decode); a look at the prompt's last queries is
// charged once. Sums over blocks, top-k and what is kept from one query to the next are not
// counted. cost_model counts the attention behind it.
#pragma once

#include <string_view>

#include "analysis/hardware.h"
#include "core/problem.h"

namespace msa::analysis {

/// Of all queries of the problem; `prompt` as in SelectorLayer. Throws InputError for a selector
/// that it does not know.
Cost selector_cost(std::string_view selector, const Problem&, int64_t prompt);

}  // namespace msa::analysis
