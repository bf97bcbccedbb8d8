// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

namespace msa {

/// Tokens of the longest packed sequence, given its bounds cu_seqlens [S+1]; 0 if there is none.
int64_t longest_sequence(std::span<const int64_t> cu_seqlens);

}  // namespace msa
