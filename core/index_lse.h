// SPDX-License-Identifier: MIT
// Do the log-sum-exp that a caller gives to index_kl belong to its input? Asked on the host.
#pragma once

#include "core/backend.h"

namespace msa {

/// Throws InputError naming the row, the value and the rule unless of main_lse and index_lse, each
/// where it is present,
///   - a row that sees no key of its support has -inf or, of main_lse with sinks, its sink,
///   - another row is finite, but where the equations give no finite number either,
///   - kCheckedRows rows (core/attention_saved.h), the first, the last and others evenly between,
///     have what the equations give in double, within the bound of a float.
/// Of rows that are not finite, the first kCheckedRows are compared with the equations. The values
/// of other rows are not looked at. All is on the host.
void check_index_lse(const Problem&, const IndexKlInput&);

}  // namespace msa
