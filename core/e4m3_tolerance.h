// SPDX-License-Identifier: MIT
// What attention to e4m3 operands adds to core/tolerance.h. Logits: e4m3_logit_bound there.
#pragma once

#include "core/tolerance.h"

namespace msa {

/// Error of an output of tensor cores that take weights and values in e4m3, whose values have the
/// attention-weighted mean magnitude `mean` and are at most `v_max`. Beside attention_bound():
/// weights go up to 2^8, and those below 2^-6 are off by up to 2^-10 each, so by 2^-18 of the
/// largest; the products of a block of `block_size` keys are added up with 13 fraction bits (see
/// e4m3_logit_bound), those of blocks in float.
inline double e4m3_attention_bound(double logit, double keys, double mean, double v_max,
                                   double block_size, Element stored) {
    const double sums = std::ceil(block_size / 32) * 33 * 0x1p-13;
    // Weights as floats, then rounded once where they are not below 2^-6.
    return attention_bound(logit, keys, mean, Element::f32, stored) +
           (storage_roundoff(Element::e4m3) + sums) * mean + keys * 0x1p-18 * v_max;
}

}  // namespace msa
