// SPDX-License-Identifier: MIT
// Rows of queries that take in one key block after another.
#pragma once

#include <cstdint>

#include "core/cpu/tile.h"
#include "core/tensor.h"

namespace msa::cpu {

/// Rows [(query, head)] of queries that all attend to a block, and what they have gathered so far.
struct BlockRows {
    const float* q;  // [count, dh], times softmax_scale * kLog2E
    int64_t count;
    int64_t heads;        // rows of one query
    const int64_t* seen;  // [count / heads] keys of the block that the query sees, at least 1
    OnlineSum* softmax;   // [count]
    float* sums;          // [count, padded(dh)], p v relative to softmax.top
};

/// All rows take in a block. logits: scratch of kStrip * padded(keys.columns) + kLanes floats.
void add_block(const BlockRows& rows, Panels keys, Panels values, float* logits);

/// One row's output and lse; 0 and -inf where nothing was taken in.
void finish_row(const float* sums, const OnlineSum& softmax, View<float, 1> out, float& lse);

}  // namespace msa::cpu
