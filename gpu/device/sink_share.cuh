// SPDX-License-Identifier: MIT
// What a sink leaves of a head.
#pragma once

namespace msa::cuda {

/// The logarithm of the share of a head's probability that its sink leaves to the keys, from the
/// lse of the keys' logits alone.
inline __device__ float log_share(float sink, float lse) {
    const float above = sink - lse;
    return above > 0 ? -above - log1pf(expf(-above)) : -log1pf(expf(above));
}

}  // namespace msa::cuda
