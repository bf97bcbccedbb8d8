// SPDX-License-Identifier: MIT
// How the operands of DSA's indexer, dsa_q, dsa_k and dsa_w of data/FORMAT.md, come to a policy.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/tensor.h"

namespace msa {

enum class DsaOperand : uint8_t { q, k, w };

/// Rows [n, heads, channels] of an operand, on the host, of packed tokens (ascending); without
/// tokens, of all. k has one head, w one with a channel for each index head.
using ReadDsa = std::function<Tensor<float, 3>(DsaOperand, std::span<const int64_t> tokens)>;

}  // namespace msa
