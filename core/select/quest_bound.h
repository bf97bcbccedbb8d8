// SPDX-License-Identifier: MIT
// Quest's bound of q . k over some keys (arXiv 2406.10774) as a product of two vectors of width
// 2 dh: sum_d max(q_d low_d, q_d high_d) = sum_d max(q_d, 0) high_d + min(q_d, 0) low_d.
#pragma once

#include "core/select/block_vectors.h"

namespace msa {

/// A BlockVectors::OfKeys: [high, low] per channel.
void quest_bounds(const KeyRows& keys, View<float, 1> bounds);
/// A BlockVectors::OfQuery: [max(q, 0), min(q, 0)].
void add_quest_parts(View<const float, 1> q, View<float, 1> parts);

}  // namespace msa
