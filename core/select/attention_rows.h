// SPDX-License-Identifier: MIT
// Main Branch attention of chosen queries, for selectors that use the attention of other queries.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/select/policy.h"

namespace msa {

/// P_b [n, Hkv, B] of the queries `tokens` (packed, ascending), read through SelectorLayer::read_q,
/// for blocks of `block_size` tokens. With blocks of one token it is the probability of each key,
/// mean over the group's heads.
Mirror<3> mass_at(const SelectorLayer&, std::span<const int64_t> tokens, int64_t block_size);

/// Calls visit(first, mass) with the mass_at of tokens[first], tokens[first + 1], ..., as many as
/// fit into memory at a time.
void for_each_mass(const SelectorLayer&, std::span<const int64_t> tokens, int64_t block_size,
                   const std::function<void(int64_t first, View<const float, 3> mass)>& visit);

/// Sum of P_b [Hkv, B] over all queries of a sequence's prompt; 0 in the prefill phase, which has
/// none.
Tensor<float, 2> prompt_mass(const SelectorLayer&, int64_t sequence);

/// The packed tokens [begin, end) of a sequence, by position.
std::vector<int64_t> sequence_tokens(const Problem&, int64_t sequence, QueryRange positions);
/// First packed token of a sequence, and its key tokens.
int64_t sequence_start(const Problem&, int64_t sequence);
int64_t sequence_length(const Problem&, int64_t sequence);
/// The sequence and the position of a packed token.
int64_t sequence_of(const Problem&, int64_t token);
int64_t position_of(const Problem&, int64_t token);
/// Tokens of a sequence whose queries a policy sees before it decides: the prompt in the decode
/// phase, all tokens in the prefill phase.
int64_t prompt_length(const SelectorLayer&, int64_t sequence);
/// SelectorLayer::counted, or all queries of the phase if that is empty.
std::vector<int64_t> counted_tokens(const SelectorLayer&);

}  // namespace msa
