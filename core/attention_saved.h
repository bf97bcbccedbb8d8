// SPDX-License-Identifier: MIT
// Do the saved results of a forward pass belong to its input? Asked before a gradient is made of
// them, on the host.
//
// They may be those of attention over more keys, of which the input's are a part, as parts of
// FlashAttention are merged (AttentionSaved::whole is false). Then p is the probability among all
// the keys, and the gradients of the parts add up, given that one of them has the sinks.
#pragma once

#include "core/backend.h"

namespace msa {

/// Throws InputError naming the row, the value and the rule unless
///   - a row (query, head) that sees no key has out 0, and lse -inf or, with sinks, its sink,
///   - another row has lse above -inf, and where lse is NaN, out is NaN too,
///   - kCheckedRows rows, the first, the last and others evenly between, have the lse and out that
///     the equations give in double, within the bounds of a forward pass in float
///     (core/tolerance.h); of these, rows with a value that is not finite are passed over.
/// Of a part (saved.whole is false), a row that sees no key may have any values, and the lse of the
/// rows that are compared must not be below what the equations give, the same bounds apart.
/// The values of other rows are not looked at. ids [Nq, Hkv, k] are those of sparse_attention,
/// which satisfy check_selection; absent: dense_attention. All is on the host.
void check_saved(const Problem&, const AttentionInput&, View<const int32_t, 3> ids,
                 const AttentionSaved&);

inline constexpr int64_t kCheckedRows = 4;

}  // namespace msa
