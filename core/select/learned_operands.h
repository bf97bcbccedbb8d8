// SPDX-License-Identifier: MIT
// How operands that were learned for one rule alone come to its policy: those of DSA's indexer and
// of SeerAttention's gate, named as in data/FORMAT.md.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/tensor.h"

namespace msa {

enum class LearnedOperand : uint8_t { dsa_q, dsa_k, dsa_w, gate_q, gate_k };

/// Rows [n, heads, channels] of an operand, on the host, of packed tokens (ascending); without
/// tokens, of all. dsa_k has one head, dsa_w one with a channel for each index head. gate_k has a
/// row for each block of all sequences, in order, and is read whole.
using ReadLearned =
    std::function<Tensor<float, 3>(LearnedOperand, std::span<const int64_t> tokens)>;

}  // namespace msa
