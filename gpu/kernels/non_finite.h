// SPDX-License-Identifier: MIT
// A tile multiplies values that a query does not see by 0, which is correct only if they are
// finite.
#pragma once

#include <initializer_list>

#include "gpu/runtime.h"

namespace msa::cuda {

/// *found becomes 1 if one of `values` [Nk, Hkv, dh] in one of the `spans`, of at most `most` keys,
/// is not finite, else 0. values are bf16 or f16, aligned to 16 bytes. Asynchronous.
void find_non_finite(const Call&, In<3> values, View<const KeyRange, 1> spans, int64_t most,
                     int32_t* found);

/// *found becomes 1 if an element of one of the `tensors` is not finite, else 0. They are bf16 or
/// f16; begin and size are multiples of 16 bytes.
void find_non_finite(const Call&, std::initializer_list<Out<3>> tensors, int32_t* found);

}  // namespace msa::cuda
