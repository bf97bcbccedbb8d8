// SPDX-License-Identifier: MIT
// The queries that selected each block of keys, for kernels that work by key.
#pragma once

#include <limits>

#include "gpu/runtime.h"

namespace msa::cuda {

/// List number group * blocks + block is [starts[list], starts[list + 1]) of `queries`, ascending;
/// blocks are counted over all sequences (Layout::key_blocks). Absent: all queries of the block's
/// sequence.
struct ReverseIndex {
    const int64_t* starts;
    const int32_t* queries;
    const int32_t* slots;  // where the block stands among the k of the query; see has_slots()
};

/// Scratch memory and ReverseIndex of ids [Nq, Hkv, k], not empty. The call must be of a whole
/// problem.
struct SortedUses {
    Tensor<int32_t, 1> queries, slots;
    Tensor<int64_t, 1> starts;

    SortedUses(const Call&, View<const int32_t, 3> ids);
    ReverseIndex index() const { return {starts.data(), queries.data(), slots.data()}; }
    /// Query and slot are sorted as one number of 32 bits. Where they do not fit, slots are absent.
    static bool has_slots(int64_t queries, int64_t top_k) {
        return queries * top_k <= std::numeric_limits<int32_t>::max();
    }
};

}  // namespace msa::cuda
