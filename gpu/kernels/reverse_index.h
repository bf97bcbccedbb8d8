// SPDX-License-Identifier: MIT
// The queries that selected each block of keys, for kernels that work by key.
#pragma once

#include "gpu/runtime.h"

namespace msa::cuda {

/// List number group * blocks + block is [starts[list], starts[list + 1]) of `queries`, ascending;
/// blocks are counted over all sequences (Layout::key_blocks). Absent: all queries of the block's
/// sequence.
struct ReverseIndex {
    const int64_t* starts;
    const int32_t* queries;
};

/// Scratch memory and ReverseIndex of ids [Nq, Hkv, k], not empty. The call must be of a whole
/// problem.
struct SortedUses {
    Tensor<int32_t, 1> queries;
    Tensor<int64_t, 1> starts;

    SortedUses(const Call&, View<const int32_t, 3> ids);
    ReverseIndex index() const { return {starts.data(), queries.data()}; }
};

}  // namespace msa::cuda
