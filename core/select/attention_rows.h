// SPDX-License-Identifier: MIT
// Main Branch attention of chosen queries, token by token: what selectors look at whose rule counts
// attention that other queries have paid.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "core/select/selector.h"

namespace msa {

/// The softmax of one query and head: weights[j] of the keys [keys.begin, keys.end) of its
/// sequence, the last of them its own.
struct AttentionRow {
    int64_t query;  // of the tokens asked for, from 0
    int64_t head;
    QueryRange keys;
    const float* weights;
};

inline constexpr int64_t kAllKeys = std::numeric_limits<int64_t>::max();

/// Calls visit(row) for every head of the queries `tokens` (packed, ascending, of one sequence),
/// over the newest `window` keys that each sees. In parallel over groups: visit must keep groups
/// apart. Within one, queries come in order. Reads q through SelectorLayer::read_q.
void for_each_attention_row(const SelectorLayer&, std::span<const int64_t> tokens, int64_t window,
                            const std::function<void(const AttentionRow&)>& visit);

/// The packed tokens [begin, end) of a sequence, by position.
std::vector<int64_t> sequence_tokens(const Problem&, int64_t sequence, QueryRange positions);
/// Key tokens of a sequence.
int64_t sequence_length(const Problem&, int64_t sequence);
/// Tokens of a sequence whose queries a policy has seen before it decides: the prompt of the decode
/// phase, all in the prefill phase.
int64_t prompt_length(const SelectorLayer&, int64_t sequence);

}  // namespace msa
