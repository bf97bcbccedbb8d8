// SPDX-License-Identifier: MIT
// How policies read the operands of DSA's indexer and SeerAttention's gate, which are named as in
// data/FORMAT.md.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/tensor.h"

namespace msa {

enum class LearnedOperand : uint8_t { dsa_q, dsa_k, dsa_w, gate_q, gate_k };

/// Reads rows [n, heads, channels] of an operand to the host, for the given packed tokens
/// (ascending) or for all if none are given. dsa_k has one head; dsa_w has one head with a channel
/// per index head. gate_k has a row for each block of all sequences, in order, and is read whole.
using ReadLearned =
    std::function<Tensor<float, 3>(LearnedOperand, std::span<const int64_t> tokens)>;

}  // namespace msa
