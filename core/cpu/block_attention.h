// SPDX-License-Identifier: MIT
// The online softmax of query rows over one key block after another.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/cpu/tile.h"
#include "core/tensor.h"

namespace msa::cpu {

/// Rows [(query, head)] of queries that all attend to a block, and their running softmax sums.
struct BlockRows {
    const float* q;  // [count, dh], times softmax_scale * kLog2E
    int64_t count;
    int64_t heads;        // rows of one query
    const int64_t* seen;  // [count / heads] keys of the block that the query sees, at least 1
    OnlineSum* softmax;   // [count]
    float* sums;          // [count, padded(dh)], p v relative to softmax.reference
    float cap = 0;        // as in LogitRule
    /// [count / heads] how many of the seen keys lie before the query's window; absent: none.
    const int64_t* hidden = nullptr;
};

/// A query sees `visible` keys causally and `seen` keys of the block at position `first`. Returns
/// how many of the latter lie before the query's window.
inline int64_t hidden_keys(const Problem& p, int64_t visible, int64_t first, int64_t seen) {
    return std::clamp<int64_t>(p.window_start(visible) - first, 0, seen);
}

/// Adds a block to the running sums of all rows. logits: scratch of kBatch * padded(keys.columns) +
/// kLanes floats.
void add_block(const BlockRows& rows, Panels keys, Panels values, float* logits);

/// One row's output and lse; 0 and -inf if no key was added.
void finish_row(const float* sums, const OnlineSum& softmax, View<float, 1> out, float& lse);

/// Adds the sinks to finished rows, out [Nq, Hq, dh] and lse [Nq, Hq]; see AttentionInput::sinks.
/// Does nothing if sinks are absent.
void add_sinks(View<const float, 1> sinks, View<float, 3> out, View<float, 2> lse, int threads);

}  // namespace msa::cpu
