// SPDX-License-Identifier: MIT
// Checks on the host that the log-sum-exps given to index_kl belong to its input.
#pragma once

#include "core/backend.h"

namespace msa::reference {

/// Checks main_lse and index_lse, each if present. Throws InputError naming the row, the value and
/// the rule unless:
///   - a row that sees no key of its support has -inf or, of main_lse with sinks, its sink,
///   - another row is finite, but where the equations give no finite number either,
///   - kCheckedRows rows (check_saved.h), the first, the last and others evenly between, have what
///     the equations give in double, within the bound of a float.
/// The first kCheckedRows rows that are not finite are compared with the equations, too. Other rows
/// are not checked. All arguments are in host memory.
void check_index_lse(const Problem&, const IndexKlInput&);

}  // namespace msa::reference
