// SPDX-License-Identifier: MIT
// Checks on the host, before a gradient is computed, that the saved results of a forward pass
// belong to its input.
//
// The saved results may cover more keys than the input (AttentionSaved::partial), as when
// FlashAttention merges parts. Then p is the probability among all keys, and the gradients of the
// parts add up if exactly one part has the sinks.
#pragma once

#include "core/backend.h"

namespace msa::reference {

/// Throws InputError naming the row, the value and the rule unless:
///   - a row (query, head) that sees no key has out 0, and lse -inf or, with sinks, its sink,
///   - another row has lse above -inf, and where lse is NaN, out is NaN too,
///   - kCheckedRows rows, the first, the last and others evenly between, have the lse and out that
///     the equations give in double, within the bounds of a forward pass in float
///     (core/tolerance.h); of these, rows with a value that is not finite are passed over.
/// If saved.partial is true, a row that sees no key may have any values, and the lse of a compared
/// row must not be below the equations' value minus its bound. Other rows are not checked. ids
/// [Nq, Hkv, k] are those of sparse_attention and satisfy check_selection; absent: dense_attention.
/// All arguments are in host memory.
void check_saved(const Problem&, const AttentionInput&, View<const int32_t, 3> ids,
                 const AttentionSaved&);

inline constexpr int64_t kCheckedRows = 4;

}  // namespace msa::reference
