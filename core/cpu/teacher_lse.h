// SPDX-License-Identifier: MIT
// The normaliser of each head of index_kl's teacher, from the lse of its logits and its sink.
#pragma once

#include "core/backend.h"
#include "core/cpu/support_sums.h"

namespace msa::cpu {

/// lse [Nq, Hq] in base 2 such that a head's share of the teacher is exp2(logit - lse). Shares of
/// the mean add up to 1; the maximum is yet to be divided by its sum. Each head is weighted by 1 -
/// its sink's probability. -inf for all heads of a row if no key of its support lies in its window.
/// Computed from in.main_lse if that is present and precise enough (kLeastShare).
Tensor<float, 2> teacher_lse(const Problem&, const Branch& main, const IndexKlInput&, int threads);

}  // namespace msa::cpu
