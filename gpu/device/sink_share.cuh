// SPDX-License-Identifier: MIT
// The share of a head's probability that its sink leaves to the keys.
#pragma once

namespace msa::cuda {

/// The natural logarithm of that share. `lse` is that of the keys' logits, without the sink.
inline __device__ float log_share(float sink, float lse) {
    const float above = sink - lse;
    return above > 0 ? -above - log1pf(expf(-above)) : -log1pf(expf(above));
}

}  // namespace msa::cuda
