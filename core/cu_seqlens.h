// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

namespace msa {

/// Tokens of the longest of the packed sequences that cu_seqlens [S+1] bounds; 0 without any.
int64_t longest_sequence(std::span<const int64_t> cu_seqlens);

}  // namespace msa
