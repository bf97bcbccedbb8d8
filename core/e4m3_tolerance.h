// SPDX-License-Identifier: MIT
// The error bound of attention with e4m3 operands. For logits see e4m3_logit_bound in
// core/tolerance.h.
#pragma once

#include "core/tolerance.h"

namespace msa {

/// Error of an attention output from tensor cores that take weights and values in e4m3. The values
/// have the attention-weighted mean magnitude `mean` and are at most `v_max`. Beyond
/// attention_bound(): weights go up to 2^8, and weights below 2^-6 are off by up to 2^-10, that is
/// 2^-18 of the largest. Products within a block of `block_size` keys are added with 13 fraction
/// bits (see e4m3_logit_bound), blocks in float.
inline double e4m3_attention_bound(double logit, double keys, double mean, double v_max,
                                   double block_size, Element stored) {
    const double sums = std::ceil(block_size / 32) * 33 * 0x1p-13;
    // Weights as floats, and one rounding of those from 2^-6 up.
    return attention_bound(logit, keys, mean, Element::f32, stored) +
           (storage_roundoff(Element::e4m3) + sums) * mean + keys * 0x1p-18 * v_max;
}

}  // namespace msa
