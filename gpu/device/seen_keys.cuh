// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "gpu/key_pages.h"
#include "gpu/query_tile.h"

namespace msa::cuda {

/// The number of keys that a query sees.
__device__ inline int seen_keys(const KeyRange* visible, int64_t query) {
    return static_cast<int>(visible[query].count);
}

/// Keys that a sequence has now fewer than the batch says. What writes the lengths must be done;
/// they are read past L1, which may have older ones in kernels that begin early.
__device__ inline int fewer_keys(const KeyLengths& of, int sequence) {
    if (of.lengths == nullptr) return 0;
    return of.most(sequence) - length_now(__ldcg(of.lengths + sequence), of.most(sequence));
}
/// Of a query's sequence; of_query [Nq] may be null where the host knows all lengths.
__device__ inline int fewer_keys(const KeyLengths& of, const QueryTile* of_query, int64_t query) {
    return of.lengths == nullptr ? 0 : fewer_keys(of, of_query[query].sequence);
}

}  // namespace msa::cuda
