// SPDX-License-Identifier: MIT
// A tile that multiplies hidden values by 0 is right only where they are finite.
#pragma once

#include <initializer_list>

#include "gpu/runtime.h"

namespace msa::cuda {

/// *found becomes 1 where a value of `values` [Nk, Hkv, dh], bf16 or f16 at multiples of 16 bytes,
/// of one of the `spans` of at most `most` keys is not finite, else 0. Nothing waits for it.
void look_for_not_finite(const Call&, In<3> values, View<const KeyRange, 1> spans, int64_t most,
                         int32_t* found);

/// *found becomes 1 where an element of one of the `tensors`, bf16 or f16 at multiples of 16 bytes,
/// of whole 16 bytes, is not finite, else 0.
void look_for_not_finite(const Call&, std::initializer_list<Out<3>> tensors, int32_t* found);

}  // namespace msa::cuda
