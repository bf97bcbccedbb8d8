// SPDX-License-Identifier: MIT
// What each head of the teacher is divided by, from the lse of its logits and its sink.
#pragma once

#include "core/backend.h"
#include "core/cpu/support_sums.h"

namespace msa::cpu {

/// lse [Nq, Hq] in base 2 such that a head's part of the teacher is exp2(logit - lse): of the mean,
/// whose parts add up to 1, or of the maximum, which is yet to be divided by its sum. Heads count
/// by what their sinks leave of them. -inf for all heads of a row that no key teaches. From
/// in.main_lse where it is there and tells enough of what the sinks leave.
Tensor<float, 2> teacher_lse(const Problem&, const Branch& main, const IndexKlInput&, int threads);

}  // namespace msa::cpu
