// SPDX-License-Identifier: MIT
// The operands of the indexers of DSA and QSA and of SeerAttention's gate, which are named as in
// data/FORMAT.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "core/tensor.h"

namespace msa {

enum class LearnedOperand : uint8_t { dsa_q, dsa_k, dsa_w, gate_q, gate_k, qsa_q, qsa_k };

/// Their sizes in a layer; 0 where it has none.
struct LearnedSizes {
    int64_t dsa_heads = 0;        // of DSA's indexer (core/indexer/lightning_kl.h),
    int64_t dsa_dim = 0;          // and channels of each
    int64_t gate_dim = 0;         // of SeerAttention's gate (core/indexer/gate_kl.h),
    int64_t gate_block_size = 0;  // and tokens of a block of gate_k
    int64_t qsa_heads = 0;        // of QSA's indexer (core/indexer/qsa_kl.h),
    int64_t qsa_dim = 0;          // channels of each,
    int64_t qsa_compress = 0;     // and tokens of a piece of qsa_k
    /// The earlier layer whose operands the layer has, of all its indexers, index_q and index_k
    /// among them: it takes that layer's ids. Absent: they are its own.
    std::optional<int64_t> source = {};
};

/// Reads rows [n, heads, channels] of an operand to the host, for the given packed tokens
/// (ascending) or for all if none are given. dsa_k has one head; dsa_w has one head with a channel
/// per index head. gate_k has a row for each block of all sequences, in order, qsa_k
/// one for each piece; they are read whole.
using ReadLearned =
    std::function<Tensor<float, 3>(LearnedOperand, std::span<const int64_t> tokens)>;

}  // namespace msa
